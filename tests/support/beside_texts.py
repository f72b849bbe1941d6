"""A stream of text whose times between tokens are measured, and rows that come without an end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from batchedmodel_contract.processes.sidecar_metrics import GENERATION_RUNNING
from support.chain import Chain

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"
_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)


async def token_times(
    chain: Chain,
    tokens: int,
    prompt: str | Sequence[int] = "hello",
    *,
    into: list[float] | None = None,
) -> list[float]:
    """When each token of one stream came, in monotonic seconds; `into` gets them as they come."""
    document = {
        "model": chain.name,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    times = [] if into is None else into
    url = chain.url("/v1/completions")
    async with chain.session.post(url, json=document, timeout=_NO_LIMIT) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(_DATA) or _DONE in line:
                continue
            event = json.loads(line.removeprefix(_DATA))
            assert "error" not in event, event
            # What ends a text may come in an event of its own.
            if event["choices"] and event["choices"][0]["text"]:
                times.append(time.monotonic())
    return times


@asynccontextmanager
async def texts_running(chain: Chain, count: int, tokens: int) -> AsyncIterator[list[list[float]]]:
    """So many streams for as long as the context lasts, and when the tokens of each came so far."""
    times: list[list[float]] = [[] for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        texts = [
            group.create_task(token_times(chain, tokens, f"Text {number}:", into=one))
            for number, one in enumerate(times)
        ]
        while not all(times):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield times
        for text in texts:
            text.cancel()
    await chain.until(GENERATION_RUNNING, lambda running: running == 0)


@dataclass(slots=True)
class RowsAnswered:
    """How many rows were answered so far."""

    count: int = 0


async def asked_rows(chain: Chain, rows: int) -> None:
    """One request of so many rows."""
    data = list(range(rows))
    tensor = {"name": "x", "datatype": "INT64", "shape": [rows, 1], "data": data}
    document = {"inputs": [tensor]}
    async with chain.session.post(chain.url(chain.infer_path), json=document) as response:
        assert response.status == 200, await response.text()
        (output,) = (await response.json())["outputs"]
        assert output["data"] == data


@asynccontextmanager
async def rows_asked(chain: Chain, rows: int, callers: int) -> AsyncIterator[RowsAnswered]:
    """So many callers, each of which has its next request of so many rows at once."""
    answered = RowsAnswered()

    async def caller() -> None:
        while True:
            await asked_rows(chain, rows)
            answered.count += rows

    asking = [asyncio.create_task(caller()) for _ in range(callers)]
    try:
        yield answered
        for one in asking:
            if one.done():
                one.result()
    finally:
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
