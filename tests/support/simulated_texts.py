"""A caller of the simulated handler's engine that reads a chat's stream and checks all of it."""

import asyncio
import json
from array import array
from typing import Any, Final

import aiohttp

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.handlers.simulated import drawn

_USER, _ASSISTANT = 258, 259
_GREEDY: Final = Sampling(temperature=0.0)
_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


def text_of(content: str, tokens: int) -> str:
    """What the device answers to one message, at temperature 0."""
    ids = array("i", [_USER, *content.encode(), ord("\n"), _ASSISTANT])
    begin = len(ids)
    while len(ids) < begin + tokens:
        ids.append(drawn(ids, _GREEDY, 0))
    return bytes(ids[begin:].tolist()).decode()


async def chatted(
    session: aiohttp.ClientSession,
    url: str,
    content: str,
    tokens: int,
    *,
    model: str = "llm",
    begun: asyncio.Event | None = None,
) -> str:
    """Ask for a stream; "right", or in what it was not whole and as it has to be.

    `begun` is set with its first token.
    """
    document = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }
    found, done = "", False
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
                return f"{told['error']} behind {len(found)} of {tokens} tokens"
            found += _text(told)
            if begun is not None and found:
                begun.set()
    if not done:
        return f"no end behind {len(found)} of {tokens} tokens"
    expected = text_of(content, tokens)
    return "right" if found == expected else f"{found!r} in place of {expected!r}"


def _text(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
