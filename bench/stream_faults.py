"""Streams among which engines die, callers leave and callers read slowly: is each token right?

Called by `streams`. A stream that nothing happened to must be whole. One that was broken off, at
the engine or by its caller, must have all tokens up to there, and no end that looks whole.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stream_capacity import drawn
from stream_chain import StreamChain
from stream_client import clock
from stream_plan import Record, Stream, StreamLoad, run_streams
from support.engine import EngineSettings

ENGINE: Final = EngineSettings(step_seconds=0.01)
RATE: Final = 40.0
_GRACE: Final = 4.0
_SLOW_TOKENS: Final = 240
_SLOW_BUFFER: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What became of all tokens and streams."""

    streams: int
    wrong: int
    """Tokens that were lost, doubled or another stream's."""
    false_ends: int
    """Streams that seemed whole and were not."""
    without_cause: int
    """Streams that broke off though nothing had happened to them."""
    refused: int
    killed: int
    """Streams that were on their way while the engine was away."""
    left: int
    leaves: Sequence[float]
    """Seconds from when callers left until the engine ended their requests."""
    slow: int


async def faults(chain: StreamChain, seconds: float, seed: int) -> Seen:
    """Offer streams for so long; the engine is killed in the middle and comes back."""
    streams = _streams(seconds, seed)
    load = StreamLoad(port=chain.port, streams=streams, seconds=seconds, grace_seconds=_GRACE)
    running = asyncio.create_task(run_streams(load))
    await asyncio.sleep(seconds / 2)
    away = clock()
    await chain.engine.come_back()
    back = clock()
    result = await running
    by_mark = {one.mark: one for one in streams}
    gone = (away - result.began, back - result.began)
    # The engine that was killed says nothing more of its own.
    ended = (await chain.engine.times()).left
    leaves = [
        ended[one.mark] - result.began - one.ended
        for one in result.records
        if one.left and one.ended is not None and one.mark in ended
    ]
    return replace(seen_of(result.records, by_mark, gone), leaves=leaves)


def _streams(seconds: float, seed: int) -> list[Stream]:
    rng, streams = random.Random(seed), list[Stream]()
    for stream in drawn(RATE, seconds, seed + 400):
        kind, some = rng.random(), rng.randint(1, stream.tokens - 1)
        if kind < 0.1:
            stream = replace(stream, leaves_after=some)
        elif kind < 0.2:
            stream = replace(
                stream,
                tokens=_SLOW_TOKENS,
                pauses_after=40,
                pause_seconds=0.2,
                receive_buffer=_SLOW_BUFFER,
            )
        elif kind < 0.3:
            stream = replace(stream, script={"breaks_off_after": some})
        elif kind < 0.35:
            stream = replace(stream, script={"error_after": some})
        streams.append(stream)
    return streams


def seen_of(
    records: Sequence[Record], streams: Mapping[int, Stream], away: tuple[float, float]
) -> Seen:
    """Judge each stream by what was to become of it; the engine was `away` between two times."""
    wrong = false_ends = without_cause = refused = killed = left = slow = 0
    for one in records:
        stream = streams[one.mark]
        due = stream.script.get("breaks_off_after") or stream.script.get("error_after")
        was_killed = one.sent < away[1] and (one.ended is None or one.ended > away[0])
        wrong += one.lost + one.doubled + one.foreign
        slow += stream.pauses_after is not None
        killed += was_killed
        ends_well = one.told_reason or (one.told_end and not one.error_event)
        if ends_well and one.tokens < one.expected:
            false_ends += 1
            wrong += one.expected - one.tokens
        if was_killed:
            continue
        if one.left:
            left += 1
        elif one.status != 200:
            refused += 1
        elif due is not None:
            wrong += abs(due - one.tokens)
        elif not one.completed:
            without_cause += 1
            wrong += 0 if ends_well else one.expected - one.tokens
    return Seen(
        streams=len(records),
        wrong=wrong,
        false_ends=false_ends,
        without_cause=without_cause,
        refused=refused,
        killed=killed,
        left=left,
        leaves=(),
        slow=slow,
    )
