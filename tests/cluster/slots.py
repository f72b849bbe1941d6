"""Numbered places on this machine for clusters that run at the same time.

Names and addresses of everything that a cluster makes follow from its slot's number, so that what
a killed one has left behind can be found without any record of it.
"""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.errors import Unavailable

SLOTS = range(16)
_LOCAL = "fd62:6d74"
"""Of the unique local addresses of RFC 4193."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place, in RFC 2544's test range 198.18.0.0/15, which no network routes.

    `ipv6`: the same in a range of unique local addresses, and no other address.
    """

    number: int
    ipv6: bool = False

    @property
    def interface(self) -> str:
        """This machine's end of the cable into the cluster."""
        return f"batchedmodel{self.number}"

    @property
    def cgroup(self) -> str:
        """Parent of all pods' control groups, in every hierarchy."""
        return f"batchedmodel-test-{self.number}"

    @property
    def host_address(self) -> str:
        """This machine as seen from the cluster: where a test's own server is reached."""
        return self._address(1) if self.ipv6 else f"198.18.{self.number}.1"

    @property
    def node_address(self) -> str:
        """The node and the API server, reached from this machine."""
        return self._address(2) if self.ipv6 else f"198.18.{self.number}.2"

    @property
    def cable(self) -> int:
        """Bits of the network between these two."""
        return 126 if self.ipv6 else 30

    @property
    def everywhere(self) -> str:
        """What a server binds to be reached at all addresses of this family."""
        return "::" if self.ipv6 else "0.0.0.0"

    @property
    def pods(self) -> str:
        """Addresses of pods: 254."""
        return (
            f"{_LOCAL}:{self.number:x}:1::/64" if self.ipv6 else f"198.18.{128 + self.number}.0/24"
        )

    @property
    def services(self) -> str:
        """Addresses of Services: 4,094, for tests with a thousand models."""
        return (
            f"{_LOCAL}:{self.number:x}:2::/112" if self.ipv6 else f"198.19.{16 * self.number}.0/20"
        )

    @property
    def api_service_address(self) -> str:
        """The Service `kubernetes`: by convention the first address of the range."""
        return str(ipaddress.ip_network(self.services)[1])

    def _address(self, host: int) -> str:
        return str(ipaddress.ip_address(f"{_LOCAL}:{self.number:x}::{host}"))


@contextmanager
def claimed_slot(*, ipv6: bool = False) -> Iterator[Slot]:
    """Holds the first free slot until the block ends or this process does.

    Raises:
        Unavailable: all slots are taken.
    """
    with _first_free("cluster") as number:
        yield Slot(number, ipv6)


@contextmanager
def claimed_image_store() -> Iterator[int]:
    """Holds the first free one of containerd's image stores: its number.

    Apart from slots, for a control plane that was started first would otherwise leave the next
    cluster with another store, into which gigabytes of images are imported anew.
    """
    with _first_free("images") as number:
        yield number


@contextmanager
def claimed_if_free(number: int) -> Iterator[Slot | None]:
    """Holds the slot `number`, or gives None while somebody else does."""
    with socket.socket(socket.AF_UNIX) as claim:
        yield Slot(number) if _claim(claim, "cluster", number) else None


@contextmanager
def _first_free(kind: str) -> Iterator[int]:
    for number in SLOTS:
        with socket.socket(socket.AF_UNIX) as claim:
            if _claim(claim, kind, number):
                yield number
                return
    raise Unavailable(f"all {len(SLOTS)} places for test clusters are in use")


def _claim(claim: socket.socket, kind: str, number: int) -> bool:
    # A name in the abstract namespace belongs to one process of a network namespace, which is what
    # the interfaces and routes belong to, and the kernel frees it however the process ends.
    try:
        claim.bind(f"\0batchedmodel-test-{kind}-{number}")
    except OSError:
        return False
    return True
