"""What our own engine does when callers leave and when it is killed: blocks and tokens.

Called by `generation_chain`, whose processes it asks.
"""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import aiohttp
import orjson

from batchedmodel_contract.generation.frames import Cancel, StepReport
from bench_report import Figure, at_most, of_rounds
from stream_plan import CHAT, COMPLETIONS, MODEL
from support.chain import Chain
from support.engine_frames import submit
from support.private_hop import Hop, connected

STREAMS: Final = 64
KILLED: Final = 100
_PROMPT_TOKENS: Final = 200
_LONG: Final = 2000
"""Tokens of texts that do not end by themselves."""
_TOKENS: Final = 60
_MID_STREAM: Final = 0.5
"""Seconds in which the first texts have some of their tokens."""
_EVENT: Final = b"data: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What became of streams whose engine was killed."""

    under_way: int
    """Streams that had begun and not ended."""
    lost: int
    """Tokens."""
    doubled: int
    broken: int
    """Streams that did not end as they should."""


async def cancelled(chain: Chain) -> int:
    """Steps that ended before all blocks were free that half of the streams had.

    The streams are asked for over the engine's own connection, and cancelled there.
    """
    async with connected(chain.folder / "model.sock") as caller:
        # Each begins otherwise, so that they share no blocks.
        prompts = ([65 + one, *[65] * (_PROMPT_TOKENS - 1)] for one in range(STREAMS))
        await caller.send(*(submit(at, ids, max_tokens=_LONG) for at, ids in enumerate(prompts)))
        before = await _running(caller, STREAMS)
        half = [Cancel(id=one) for one in range(0, STREAMS, 2)]
        await caller.send(*half)
        steps = await _steps_until_free(caller, before, len(half))
        await caller.send(*(Cancel(id=one) for one in range(1, STREAMS, 2)))
        await caller.idle()
        return steps


async def hung_up(chain: Chain) -> int:
    """The same of callers over HTTP that hang up."""
    prompts = [f"{one} ".ljust(_PROMPT_TOKENS, "w") for one in range(STREAMS)]
    same = {"model": MODEL, "max_tokens": _LONG, "stream": True}
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        connected(chain.folder / "model.sock") as watcher,
        aiohttp.ClientSession(connector=connector) as session,
        AsyncExitStack() as stack,
    ):
        asked = [
            session.post(chain.url(COMPLETIONS), json={**same, "prompt": one}) for one in prompts
        ]
        streams = await asyncio.gather(*map(stack.enter_async_context, asked))
        before = await _running(watcher, STREAMS)
        for stream in streams[::2]:
            stream.close()
        steps = await _steps_until_free(watcher, before, STREAMS // 2)
        for stream in streams:
            stream.close()
        await watcher.idle()
        return steps


async def _running(caller: Hop, streams: int) -> StepReport:
    """The report behind which all of them run and none has to be read any more."""
    while (report := await caller.report()).running < streams or report.backlog:
        pass
    return report


async def _steps_until_free(caller: Hop, before: StepReport, leaving: int) -> int:
    steps = 0
    while not freed(before, await caller.report(), leaving):
        steps += 1
    return steps


def freed(before: StepReport, now: StepReport, left: int) -> bool:
    """Whether so many of equally long texts are gone, with their blocks; others may have grown."""
    stay = before.running - left
    had, has = (report.blocks - report.free_blocks for report in (before, now))
    return now.running <= stay and has <= had * stay / before.running + stay


async def killed(chain: Chain) -> Killed:
    """Streams whose engine is killed and comes back, against the same texts asked for before."""
    documents = [_document(number) for number in range(KILLED)]
    wanted = await asyncio.gather(*(_whole(chain, one) for one in documents))
    texts: list[list[str]] = [[] for _ in documents]
    streams = [
        asyncio.create_task(_streamed(chain, document, text))
        for document, text in zip(documents, texts, strict=True)
    ]
    await asyncio.sleep(_MID_STREAM)
    under_way = sum(0 < len(text) < _TOKENS for text in texts)
    after = len(chain.sidecar.lines)
    chain.model.send(signal.SIGKILL)
    await chain.model.ended()
    await chain.model.start()
    await chain.ready(after=after)
    ended = await asyncio.gather(*streams)
    return compared(wanted, ["".join(text) for text in texts], ended, under_way)


def compared(
    wanted: Sequence[str], texts: Sequence[str], ended: Sequence[bool], under_way: int
) -> Killed:
    """A token is a character; behind the first that is wrong all are lost, or doubled."""
    pairs = list(zip(wanted, texts, strict=True))
    right = [
        sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False)))
        for pair in pairs
    ]
    return Killed(
        under_way=under_way,
        lost=sum(len(want) - same for (want, _), same in zip(pairs, right, strict=True)),
        doubled=sum(len(text) - same for (_, text), same in zip(pairs, right, strict=True)),
        broken=sum(not one for one in ended),
    )


def _document(number: int) -> Mapping[str, Any]:
    """Half of them take the most probable tokens, half draw by their seeds."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"text {number}"}],
        "max_tokens": _TOKENS,
        "temperature": number % 2,
        "seed": number,
    }


async def _whole(chain: Chain, document: Mapping[str, Any]) -> str:
    async with chain.session.post(chain.url(CHAT), json=document) as response:
        text: str = (await response.json())["choices"][0]["message"]["content"]
        return text


async def _streamed(chain: Chain, document: Mapping[str, Any], text: list[str]) -> bool:
    """Put each piece behind the text; whether it ended as it should."""
    done = False
    try:
        async with chain.session.post(
            chain.url(CHAT), json={**document, "stream": True}
        ) as response:
            async for line in response.content:
                if line.startswith(_EVENT + b"{"):
                    event = orjson.loads(line[len(_EVENT) :])
                    choices = event.get("choices") or [{}]
                    text.append(choices[0].get("delta", {}).get("content") or "")
                done = done or line.startswith(_EVENT + b"[DONE]")
    except aiohttp.ClientError:
        return False
    return done


def fault_figures(
    steps: Sequence[int], hung: Sequence[int], deaths: Sequence[Killed]
) -> list[Figure]:
    """Of all rounds; the worst one decides where no token may be wrong."""
    return [
        of_rounds(
            lambda value: at_most(
                "cancel of half of 64 streams: steps until their blocks are free", value, "", 1
            ),
            steps,
        ),
        of_rounds(
            lambda value: Figure(
                name="half of 64 callers hang up: steps until their blocks are free",
                value=value,
                unit="",
            ),
            hung,
        ),
        _worst("engine killed in mid-stream, 100 streams: tokens lost", [x.lost for x in deaths]),
        _worst(
            "engine killed in mid-stream, 100 streams: tokens doubled", [x.doubled for x in deaths]
        ),
        _worst(
            "engine killed in mid-stream, 100 streams: streams that did not end well",
            [x.broken for x in deaths],
        ),
        of_rounds(
            lambda value: Figure(
                name="engine killed in mid-stream, 100 streams: had begun", value=value, unit=""
            ),
            [x.under_way for x in deaths],
        ),
    ]


def _worst(name: str, counts: Sequence[int]) -> Figure:
    return at_most(name, max(counts), "", 0)
