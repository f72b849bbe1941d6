"""A caller of the simulated engine that reads a stream and checks each of its tokens."""

import json
from typing import Any, Final

import aiohttp

from support.engine_events import token_text

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


async def streamed(session: aiohttp.ClientSession, url: str, mark: int, tokens: int) -> str:
    """Ask for a stream; "right", or in what it was not whole and in order."""
    document = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "stream": True,
        "simulate": {"mark": mark},
    }
    place, done = 0, False
    async with session.post(url, json=document) as response:
        if response.status != 200:
            return f"status {response.status}: {(await response.text())[:200]}"
        async for line in response.content:
            if not line.startswith(_DATA):
                continue
            data = line[len(_DATA) :].strip()
            if done:
                return f"{data!r} behind the end"
            if data == _DONE:
                done = True
                continue
            told = json.loads(data)
            if "error" in told:
                return f"{told['error']} behind {place} of {tokens} tokens"
            if text := _text(told):
                if text != token_text(mark, place):
                    return f"{text!r} for token {place} of {mark}"
                place += 1
    return "right" if done and place == tokens else f"{place} of {tokens} tokens, done: {done}"


def _text(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
