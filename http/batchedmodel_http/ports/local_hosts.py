"""Whom a service for one machine answers, by what a request's head says. Pure.

A browser sends requests to this machine for any page that is open in it. A page of another site has
another `Origin`. One whose name was made to mean this machine (DNS rebinding) has another `Host`.
"""

import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from batchedmodel_contract.invalid_input import shown

_EVERYWHERE: Final = ("::", "0.0.0.0")


def refused_locally(headers: Mapping[str, str], listening: str) -> str | None:
    """The rule that a request breaks, by its `Host` and `Origin`; None where it breaks none.

    `listening`: the address or name that the service listens on; empty where it is for others too.
    """
    if not listening:
        return None
    host, origin = headers.get("Host"), headers.get("Origin")
    if host is not None and not _is_here(_name(host), listening.lower().removesuffix(".")):
        rule = f"is neither this machine's loopback nor {listening}, which is listened on"
        return f"Host: {shown(host)} {rule}"
    if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
        return f"Origin: {shown(origin)} is not the request's Host, {shown(host)}"
    return None


def _name(host: str) -> str:
    """Without the port, the brackets of an IPv6 address, and the dot that ends a full name."""
    name, colon, _ = host.rpartition(":")
    bare = host if not colon or host.endswith("]") else name
    return bare.strip("[]").removesuffix(".").lower()


def _is_here(name: str, listening: str) -> bool:
    if name in ("localhost", listening):
        return True
    everywhere = listening in _EVERYWHERE
    try:
        is_loopback = ip_address(name).is_loopback
    except ValueError:
        return everywhere and name == socket.gethostname().lower()
    # An address is no name that another site could have made to mean this machine.
    return everywhere or is_loopback
