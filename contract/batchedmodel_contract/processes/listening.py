"""Where a process listens: at one address, or at every address of both families; and how many
connections and files it may have.

A pod of a cluster may have an IPv4 address, an IPv6 address or both. The kubelet and the autoscaler
use whichever comes first. So one socket takes both.
"""

import errno
import resource
import socket
from typing import Final

EVERY_ADDRESS: Final = "::"
"""As a host: every address, of IPv6 and of IPv4."""
_EVERY_ADDRESS_OF_IPV4: Final = "0.0.0.0"
_LOOPBACK: Final = "127.0.0.1"
_NO_SUCH_FAMILY: Final = frozenset(
    {errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT}
)


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket that is bound and does not block or listen yet; raises `OSError`.

    `host`: an address. `EVERY_ADDRESS` takes callers of IPv4 too, whose addresses look like
    `::ffff:10.0.0.1` then; it is `0.0.0.0` where the kernel has no IPv6.
    """
    if host != EVERY_ADDRESS:
        return _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
    try:
        return _bound(socket.AF_INET6, host, port, both=True)
    except OSError as error:
        if error.errno not in _NO_SUCH_FAMILY:
            raise
        return _bound(socket.AF_INET, _EVERY_ADDRESS_OF_IPV4, port)


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket as `bound_socket` for each address of a host that may be a name; all of one port.

    Raises `OSError`, and `UnicodeError` for what cannot be a name.
    """
    if host == EVERY_ADDRESS:
        return [bound_socket(host, port)]
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for address in dict.fromkeys(str(entry[4][0]) for entry in entries):
            bound.append(bound_socket(address, port))
            port = int(bound[0].getsockname()[1])
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound


def reachable(host: str) -> str:
    """The address or name under which this machine reaches who listens on `host`."""
    # Whoever listens on all addresses has those of IPv4, be there IPv6 or not.
    return _LOOPBACK if host in (EVERY_ADDRESS, _EVERY_ADDRESS_OF_IPV4) else host


def authority(host: str, port: int) -> str:
    """Host and port as a URL has them: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(
    family: socket.AddressFamily, host: str, port: int, *, both: bool = False
) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        bound.setblocking(False)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


MOST_DESCRIPTORS: Final = 65_536


def raise_descriptors() -> int:
    """Raise the limit of open files as far as allowed; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_descriptors(soft, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return MOST_DESCRIPTORS if wanted == resource.RLIM_INFINITY else wanted


def wanted_descriptors(soft: int, hard: int) -> int:
    """The soft limit to ask for, by the present ones; never a lower one than now."""
    if resource.RLIM_INFINITY in (soft, hard):
        return soft if soft == resource.RLIM_INFINITY else max(soft, MOST_DESCRIPTORS)
    return max(soft, min(hard, MOST_DESCRIPTORS))
