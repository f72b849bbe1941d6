"""The first token of a tenant with short prompts beside one that floods with long ones.

Sidecar, model server and load generators are processes of their own on loopback. The device is
simulated and slow to read: 20 ms a step, and 0.2 ms more for each token of a prompt. The small
tenant streams a chat every 0.3 s; 64 callers of another address send completions with prompts of
4,000 tokens that do not stream, each again as soon as it is answered. Called by `fairness`.
"""

import asyncio
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from bench_report import Figure, at_most, of_rounds, plain, tell
from stream_plan import COMPLETIONS, Record, Stream, StreamLoad, run_streams
from support.chain import Chain, running_chain

_PARAMETERS: Final = {
    "generates": "true",
    "stepSeconds": "0.02",
    "prefillTokenSeconds": "0.0002",
}
_SETTINGS: Final = BatchSettings(max_batch_size=1, request_timeout_seconds=120.0)
"""Without targets, as most manifests."""
_INTERVAL_SECONDS: Final = 0.3
_PROMPT_BYTES: Final = 20
_TOKENS: Final = 8
_FLOOD_ADDRESS: Final = "127.0.0.2"
_FLOOD_CALLERS: Final = 64
_FLOOD_PROMPT_BYTES: Final = 4000
_FLOOD_MARKS: Final = 1_000_000
"""The numbers of the flood's requests begin here."""
_BEFORE_SECONDS: Final = 2.0
"""The flood has filled the engine by then."""
_GRACE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Median seconds of the small tenant in one round; infinite where an answer was not whole."""

    alone: float
    beside: float


def measure_prompt_flood(*, quick: bool) -> list[Figure]:
    """The figures; the median over the rounds."""
    return asyncio.run(_measure(rounds=1 if quick else 3, seconds=5.0 if quick else 12.0))


async def _measure(*, rounds: int, seconds: float) -> list[Figure]:
    tell("a flood of long prompts: starting")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with running_chain(
            Path(folder), handler="simulated", parameters=_PARAMETERS, settings=_SETTINGS
        ) as chain:
            await _few(chain, 1.0)  # the first chat waits for the process that renders it
            return figures([await _round(chain, seconds) for _ in range(rounds)])


def figures(rounds: Sequence[FirstTokens]) -> list[Figure]:
    """Of all rounds."""
    name = "chats through the port beside a flood of prompts of 4,000 tokens"
    return [
        of_rounds(
            lambda value: at_most(f"{name}: median first token over alone", value, "x", 2.0),
            [one.beside / one.alone for one in rounds],
        ),
        of_rounds(plain(f"{name}: median", "ms"), [1e3 * one.beside for one in rounds]),
        of_rounds(plain("the same chats alone: median", "ms"), [1e3 * one.alone for one in rounds]),
    ]


async def _round(chain: Chain, seconds: float) -> FirstTokens:
    tell("chats alone")
    alone = await _few(chain, seconds)
    tell("chats beside a flood")
    flood = asyncio.create_task(_flood(chain, _BEFORE_SECONDS + seconds))
    await asyncio.sleep(_BEFORE_SECONDS)
    beside = await _few(chain, seconds)
    await flood
    return FirstTokens(alone=alone, beside=beside)


async def _few(chain: Chain, seconds: float) -> float:
    streams = [
        Stream(
            mark=number,
            tokens=_TOKENS,
            marked=False,
            prompt_bytes=_PROMPT_BYTES,
            at=number * _INTERVAL_SECONDS,
        )
        for number in range(int(seconds / _INTERVAL_SECONDS))
    ]
    load = StreamLoad(
        port=chain.port, streams=streams, seconds=seconds, grace_seconds=_GRACE_SECONDS
    )
    return first_token((await run_streams(load)).records)


def first_token(records: Sequence[Record]) -> float:
    """The median; a request that was refused or broke off never had it."""
    times = [one.first_seconds if one.completed else None for one in records]
    return median([math.inf if one is None else one for one in times])


async def _flood(chain: Chain, seconds: float) -> None:
    streams = [
        Stream(
            mark=_FLOOD_MARKS + number,
            tokens=_TOKENS,
            marked=False,
            path=COMPLETIONS,
            prompt_bytes=_FLOOD_PROMPT_BYTES,
            address=_FLOOD_ADDRESS,
            fields={"stream": False},
        )
        for number in range(100 * _FLOOD_CALLERS)
    ]
    await run_streams(
        StreamLoad(port=chain.port, streams=streams, seconds=seconds, closed=_FLOOD_CALLERS)
    )
