"""The proxy that leads to a server, by the variables that Kubernetes' own clients read. Pure."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

_LOCAL: Final = "localhost,127.0.0.0/8,::1"


def proxy_to(server: str, environ: Mapping[str, str]) -> str | None:
    """By HTTPS_PROXY or HTTP_PROXY, and NO_PROXY; None: the server is asked directly."""
    parts = urlsplit(server)
    url = _value(environ, f"{parts.scheme}_proxy")
    passed_by = f"{_value(environ, 'no_proxy')},{_LOCAL}"
    direct = any(_covers(entry.strip(), parts.hostname or "") for entry in passed_by.split(","))
    if not url or direct:
        return None
    return url if "://" in url else f"http://{url}"


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of NO_PROXY is about a host: a name, a domain, an address or a network."""
    name, _, port = entry.lower().rpartition(":")
    entry = name if port.isdecimal() and (":" not in name or name.endswith("]")) else entry.lower()
    entry = entry.strip("[]")
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        domain = entry.removeprefix("*").removeprefix(".")
        return entry == "*" or (bool(domain) and f".{host}".endswith(f".{domain}"))
