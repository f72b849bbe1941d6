"""What a language model's server says to one request, without what differs between any two."""

from typing import Any, Final, NamedTuple

import aiohttp
import orjson

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
_OF_ONE_ANSWER: Final = frozenset({"id", "created", "timings"})


class Said(NamedTuple):
    """One answer, whole or streamed."""

    status: int
    kind: str
    """Its media type."""
    events: list[Any]
    """Of a stream all of them; else the whole document."""


def request(
    model: str, path: str, words: str, tokens: int = 12, *, stream: bool = False, **more: Any
) -> dict[str, Any]:
    """A request whose answer depends on its words alone."""
    given: dict[str, Any] = {"model": model, "max_tokens": tokens, "temperature": 0}
    given |= (
        {"messages": [{"role": "user", "content": words}]} if path == CHAT else {"prompt": words}
    )
    return given | {"stream": stream} | more


async def ask(session: aiohttp.ClientSession, url: str, path: str, document: Any) -> Said:
    """Ask one server, or a sidecar in front of one."""
    # A connection each: some servers hang up behind a stream.
    headers = {"Connection": "close"}
    async with session.post(url + path, json=document, headers=headers) as response:
        body, kind = await response.read(), response.content_type
    if kind != "text/event-stream":
        events = [_plain(orjson.loads(body))]
    else:
        assert body.endswith(b"\n\n"), body[-200:]
        events = [_event(one) for one in body.split(b"\n\n")[:-1]]
    return Said(response.status, kind, events)


def _event(event: bytes) -> Any:
    assert event.startswith(b"data: "), event
    return event if event == b"data: [DONE]" else _plain(orjson.loads(event[6:]))


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _OF_ONE_ANSWER}
