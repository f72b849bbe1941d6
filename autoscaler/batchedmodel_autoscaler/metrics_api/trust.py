"""Whether a request came through the API server's aggregation layer. Pure.

The API server has asked who the caller is and what he may before it passes a request on, and shows
a certificate of its own. Nobody else is listened to, so no token and no right is ever looked up.
"""

from collections.abc import Mapping
from typing import Any

from batchedmodel_autoscaler.cluster.objects import FrontProxy
from batchedmodel_autoscaler.errors import Untrusted


def require_front_proxy(
    front: FrontProxy, peer: Mapping[str, Any] | None, headers: Mapping[str, str]
) -> None:
    """Raises `Untrusted` with the reason.

    `peer`: a client's certificate as the ssl module shows one that it has verified; empty or None
    for a client that showed none.
    """
    if not front.authority:
        raise Untrusted("this cluster's API server does not pass requests on")
    if not peer:
        raise Untrusted("only the API server may ask here, with its client certificate")
    name = _common_name(peer)
    if front.allowed_names and name not in front.allowed_names:
        raise Untrusted(f'the client certificate\'s name "{name}" is not allowed')
    if not any(headers.get(header) for header in front.user_headers):
        raise Untrusted("the request does not say for which user it is passed on")


def _common_name(peer: Mapping[str, Any]) -> str:
    for part in peer.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""
