"""The proxy that leads to an API server, by the variables that Kubernetes' own clients read."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy, and whom else to trust behind it: it may show certificates of its own."""

    url: str
    authorities: str | None
    """A file with certificates."""


_LOCAL: Final = "localhost,127.0.0.0/8,::1"


def proxy_to(server: str, environ: Mapping[str, str]) -> Proxy | None:
    """By HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE; None: the server is asked directly."""
    url = environ.get("HTTPS_PROXY") or environ.get("https_proxy") or ""
    parts = urlsplit(server)
    passed_by = f"{environ.get('NO_PROXY') or environ.get('no_proxy') or ''},{_LOCAL}"
    direct = any(_covers(entry.strip(), parts.hostname or "") for entry in passed_by.split(","))
    if not url or parts.scheme != "https" or direct:
        return None
    with_scheme = url if "://" in url else f"http://{url}"
    return Proxy(url=with_scheme, authorities=environ.get("SSL_CERT_FILE") or None)


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
