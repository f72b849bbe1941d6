"""Tenants: whose share of the model a request uses, by the settings in force.

Pure. The sidecar asks for the share of every request.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from batchedmodel_contract.schema.rules import Real, Text
from batchedmodel_contract.schema.shapes import MapOf, Names

UNLISTED: Final = "(unlisted)"
"""The tenant of all callers that no list names, on connections from trusted proxies."""
HEADER_NAME: Final = Text(pattern="[A-Za-z0-9_-]+", form="the name of a header", at_most=128)
MOST_WEIGHTS: Final = 256
_SITE: Final = 64
"""Bits of an IPv6 address that name a customer's network, in which addresses cost nothing."""

_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_BYTE}(\.{_BYTE}){{3}}(/(3[0-2]|[12]?[0-9]))?"
_GROUP: Final = "[0-9a-fA-F]{1,4}"
_IPV6: Final = "|".join(
    (
        f"({_GROUP}:){{7}}{_GROUP}",
        f"({_GROUP}:){{1,7}}:",
        *(f"({_GROUP}:){{1,{7 - n}}}(:{_GROUP}){{1,{n}}}" for n in range(1, 7)),
        f":(:{_GROUP}){{1,7}}",
        "::",
    )
)
NETWORK: Final = Text(
    pattern=rf"{_IPV4}|({_IPV6})(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?",
    form="a network such as 10.0.0.0/8",
    at_most=64,
)
NETWORKS: Final = Names(each=NETWORK, called="network", at_most=64)
_WEIGHT: Final = Real(minimum=0.001, maximum=1000.0)
WEIGHTS: Final = MapOf(each=_WEIGHT, called=f"numbers by name, {_WEIGHT}", at_most=MOST_WEIGHTS)


class TenantsBy(StrEnum):
    """What makes a tenant; as `batching.tenants.by` says."""

    CALLER = "Caller"
    ADAPTER = "Adapter"


_BY_ADAPTER: Final = TenantsBy.ADAPTER  # an enum finds its members by Python's code


class Share(NamedTuple):
    """What a tenant may have, beside others."""

    tenant: str
    weight: float = 1.0
    most: float = 1.0
    """Of all the room there is."""


NOBODY: Final = Share("")
"""For work that no caller asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSettings:
    """What makes a tenant, what each may have, and the proxies whose word for it is believed."""

    header: str | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    max_share: float = 1.0
    trusted_proxies: tuple[str, ...] = ()
    by: TenantsBy = TenantsBy.CALLER

    def share_of(self, tenant: str) -> Share:
        """What a tenant may have; one that is not listed has weight 1."""
        return Share(tenant, self.weights.get(tenant, 1.0), self.max_share)


def tenant_of(address: str, headers: Mapping[str, str], settings: TenantSettings) -> str:
    """The tenant of a request that came from an address, with these headers.

    The header counts only on connections of trusted proxies, for a caller could take many shares by
    many values. All requests of any other address are one tenant.
    """
    header = settings.header
    if header is None or not _is_trusted(address, settings.trusted_proxies):
        return address_group(address)
    lowered = header.lower()
    names = {value for key, value in headers.items() if key.lower() == lowered}
    # Of several, one may be the caller's own that a proxy did not remove.
    name = names.pop() if len(names) == 1 else UNLISTED
    return name if name in settings.weights else UNLISTED


def share_of(address: str, headers: Mapping[str, str], settings: TenantSettings) -> Share:
    """What the tenant of such a request may have, as far as its head says who that is."""
    if settings.by is _BY_ADAPTER or (settings.header is None and not settings.weights):
        return _share_of_group(address, settings.max_share)
    return settings.share_of(tenant_of(address, headers, settings))


def share_for(name: str, caller: Share, settings: TenantSettings) -> Share:
    """The share of a request for a model or an adapter of this name, from this caller.

    Names that are known to be served only: a caller could take many shares by many names.
    """
    return settings.share_of(name) if settings.by is _BY_ADAPTER else caller


@lru_cache(maxsize=4096)
def _share_of_group(address: str, most: float) -> Share:
    return Share(address_group(address), most=most)


@lru_cache(maxsize=4096)
def address_group(address: str) -> str:
    """The addresses that count as one caller: an IPv4 address, or an IPv6 network of 64 bits.

    What is no address, such as the name of a Unix socket's peer, is its own group.
    """
    found = _parsed(address)
    if found is None or found.version == 4:
        return address if found is None else str(found)
    return str(ipaddress.ip_network((int(found), _SITE), strict=False))


@lru_cache(maxsize=4096)
def _is_trusted(address: str, proxies: tuple[str, ...]) -> bool:
    found = _parsed(address)
    return found is not None and any(found in network for network in _networks(proxies))


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address without its zone; one of IPv4 that is written as IPv6 is one of IPv4."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


@lru_cache(maxsize=8)
def _networks(
    proxies: tuple[str, ...],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(proxy, strict=False) for proxy in proxies)
