"""Which headers pass a batch, in either direction.

A batch is one request for several callers. So a caller's header passes only if it is a part of the
batch's key, and a server's header only if it is true for all of them. A caller who is alone in a
request gets all headers that are not about the connection or about the body's form.
"""

from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Final

from batchedmodel_contract.inference.tensors import HEADER_LENGTH
from batchedmodel_sidecar.protocols.headers import writable

Headers = tuple[tuple[str, str], ...]

FORWARDED: Final = (
    "authorization",
    "cookie",
    "api-key",
    "x-api-key",
    "x-tenant-id",
    "openai-organization",
    "openai-project",
    "openai-beta",
)
"""They say who asks and for which variant: calls that differ in one never share a batch."""

TRACE: Final = ("traceparent", "tracestate")
"""W3C trace context: true for one caller, so it passes only where the request has no other."""

SHARED: Final = frozenset({"model-version", "x-model-version", "openai-version", "openai-model"})
"""What is true for each caller of a batch."""

_OF_REFUSALS: Final = SHARED | {"retry-after", "www-authenticate"}
"""What is true for each caller of a batch that failed as a whole."""

# RFC 9110, 7.6.1, and what older senders add: they concern one connection, not the message.
_OF_THE_CONNECTION: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OF_A_HOP: Final = ("host", "expect", "content-length")
# Of the body, which may be cut and is sent anew; and what our own server says of itself.
_WRITTEN_ANEW: Final = frozenset(
    {
        "content-length",
        "content-encoding",
        "content-type",
        "date",
        HEADER_LENGTH.lower(),
        "server",
    }
)


def of_this_hop(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Which headers end here, in lower case: those that `Connection` names are among them."""
    named = (
        name.strip().lower()
        for field, value in headers
        if field.lower() == "connection"
        for name in value.split(",")
    )
    return _OF_THE_CONNECTION.union(named)


def passed_on(headers: Iterable[tuple[str, str]], dropped: Collection[str] = ()) -> Headers:
    """The headers of what goes on as it came: without those of one connection, and without these.

    `dropped`: names in lower case.
    """
    given = tuple(headers)
    ending = of_this_hop(given).union(dropped)
    return tuple((name, writable(value)) for name, value in given if name.lower() not in ending)


def of_caller(headers: Iterable[tuple[str, str]]) -> Headers:
    """A caller's headers that go on with its request, whose head and length are written anew."""
    return passed_on(headers, _OF_A_HOP)


def forwarded(headers: Mapping[str, str]) -> Headers:
    """What the server is told of a caller's headers."""
    return _every(FORWARDED, headers)


def trace_context(headers: Mapping[str, str]) -> Headers:
    """In which trace a caller's request is."""
    return _every(TRACE, headers)


def _every(names: Collection[str], headers: Mapping[str, str]) -> Headers:
    """The headers of these names, each as often as it was sent and in that order.

    Those that `Connection` names were meant for the sidecar alone. Names are sorted, so that
    callers who send them in another order share a key.
    """
    lowered = [(name.lower(), value) for name, value in headers.items()]
    passing = set(names) - of_this_hop(lowered)
    # Written as what goes alone is, or bytes that are no UTF-8 would be lost on the way.
    found = ((name, writable(value)) for name, value in lowered if name in passing)
    return tuple(sorted(found, key=itemgetter(0)))


def end_to_end(headers: Iterable[tuple[str, str]]) -> Headers:
    """What a lone caller is told of the server's headers."""
    return passed_on(headers, _WRITTEN_ANEW)


def shared(headers: Iterable[tuple[str, str]], *, refused: bool) -> Headers:
    """What each caller of a batch, answered or refused, is told of the server's headers."""
    passing = _OF_REFUSALS if refused else SHARED
    return tuple((name, value) for name, value in headers if name.lower() in passing)


def common(answers: Iterable[Headers]) -> Headers:
    """What all of several answers say."""
    first, *others = answers
    return tuple(one for one in first if all(one in other for other in others))
