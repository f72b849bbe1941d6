"""The addresses of a cluster, of one family or both: all follow from its slot's number."""

import ipaddress
from dataclasses import dataclass
from enum import Enum
from typing import Final

_LOCAL: Final = "fd62:6d74"
"""Of the unique local addresses of RFC 4193."""


class Families(Enum):
    """Versions of IP, that of the first addresses in front."""

    IPV4 = (4,)
    IPV6 = (6,)
    BOTH = (4, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The addresses of one family, in ranges that no network routes.

    Of IPv4, RFC 2544's test range 198.18.0.0/15; of IPv6, unique local ones.
    """

    slot: int
    version: int

    @property
    def host_address(self) -> str:
        """This machine as seen from the cluster: where a test's own server is reached."""
        return f"198.18.{self.slot}.1" if self._old else self._address(1)

    @property
    def node_address(self) -> str:
        """The node and the API server, reached from this machine."""
        return f"198.18.{self.slot}.2" if self._old else self._address(2)

    @property
    def node_in_urls(self) -> str:
        """The same where a port follows."""
        return self.node_address if self._old else f"[{self.node_address}]"

    @property
    def cable(self) -> int:
        """Bits of the network between these two."""
        return 30 if self._old else 126

    @property
    def everywhere(self) -> str:
        """What a server binds to be reached at all addresses of this family."""
        return "0.0.0.0" if self._old else "::"

    @property
    def pods(self) -> str:
        """Addresses of pods: 254."""
        return f"198.18.{128 + self.slot}.0/24" if self._old else f"{_LOCAL}:{self.slot:x}:1::/64"

    @property
    def services(self) -> str:
        """Addresses of Services: 4,094, for tests with a thousand models."""
        return f"198.19.{16 * self.slot}.0/20" if self._old else f"{_LOCAL}:{self.slot:x}:2::/112"

    @property
    def api_service_address(self) -> str:
        """The Service `kubernetes`: by convention the first address of the range."""
        return str(ipaddress.ip_network(self.services)[1])

    @property
    def _old(self) -> bool:
        return self.version == 4

    def _address(self, host: int) -> str:
        return str(ipaddress.ip_address(f"{_LOCAL}:{self.slot:x}::{host}"))
