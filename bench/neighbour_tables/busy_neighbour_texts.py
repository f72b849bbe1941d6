"""SmolLM2-135M beside a busy neighbour against the same without, and against another commit.

A busy neighbour is one process in an endless loop. The model is in bfloat16 and in float32; 8 and
48 texts at a time are streamed. Tokens that come and CPU of sidecar and model server are counted
over some seconds in the middle of the load. The last texts beside a neighbour may all end, and
those are counted that end because their time is over. At last the run is told to stop while texts
are streamed beside a neighbour: all of them should end whole.
"""

import asyncio
import itertools
import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench_report import Figure, at_most, tell
from local_server import LocalServer, busy_neighbour, ours
from neighbour_tables.busy_neighbour import (
    BESIDE,
    Plan,
    Work,
    compared,
    conditions,
    in_turns,
    under,
)
from smollm2 import checkpoint
from stream_plan import BIN_SECONDS, CHAT, Record, Stream, StreamLoad, StreamResult, run_streams

TYPES: Final = ("bfloat16", "float32")
STREAMS: Final = (8, 48)
TOKENS: Final = (16, 64)
"""The shortest text and the longest; texts of one length would all begin at the same time."""
DRAINED_STREAMS: Final = 8
DRAINED_TOKENS: Final = (96, 96)
_PROMPT_BYTES: Final = 32
_MARKS: Final = itertools.count()
"""No prompt is as another that was sent before."""
_STREAMS_A_SECOND: Final = 50
"""More than any machine of two cores ends."""
_CALM_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 40.0
"""In which every text has ended, or its time is over."""
_BEGUN_SECONDS: Final = 1.5
"""After which all texts have begun that a drain is to wait for."""
_DRAIN_SECONDS: Final = 60.0
_TIMED_OUT: Final = 504

FULL: Final = Plan(rounds=3, seconds=6.0, warm_up_seconds=3.0)
QUICK: Final = Plan(rounds=1, seconds=3.0, warm_up_seconds=3.0)


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """The table."""
    plan = QUICK if quick else FULL
    return [figure for dtype in TYPES for figure in _of_type(dtype, plan, before)]


def _of_type(dtype: str, plan: Plan, before: Path | None) -> list[Figure]:
    model = {"source": {"path": str(checkpoint())}, "parameters": {"dtype": dtype}}
    what = f"SmolLM2-135M in {dtype}"
    with ExitStack() as stack:
        now = stack.enter_context(ours("ours", checkout=None, model=model, path=CHAT))
        other = None
        if before is not None:
            other = stack.enter_context(ours("before", checkout=before, model=model, path=CHAT))
        found: dict[int, dict[str, list[Work]]] = {
            streams: {name: [] for name in conditions(other)} for streams in STREAMS
        }
        late = 0
        for number in range(plan.rounds):
            for name, server in in_turns(now, other, number):
                for streams in STREAMS:
                    is_last = name == BESIDE and number == plan.rounds - 1
                    grace = _GRACE_SECONDS if is_last else 0.0
                    work, timed_out = _work(server, streams, plan, grace)
                    tell(
                        f"{what}, {streams} streams, {name}: {work.rate:.1f} tokens/s, "
                        f"{timed_out} timed out"
                    )
                    found[streams][name].append(work)
                    late += timed_out if name == BESIDE else 0
        cut = _cut_by_a_drain(now)
    return [
        *(
            figure
            for streams in STREAMS
            for figure in compared(f"{what}, {streams} streams", "token", found[streams])
        ),
        at_most(f"{what}: texts whose time was over, {BESIDE}", late, "", 0),
        at_most(f"{what}: of {DRAINED_STREAMS} texts cut by a drain, {BESIDE}", cut, "", 0),
    ]


def _texts(number: int, lengths: tuple[int, int]) -> Sequence[Stream]:
    """So many, each of a length between these, whatever the model says."""
    return [
        Stream(
            mark=mark,
            tokens=random.Random(mark).randint(*lengths),
            marked=False,
            prompt_bytes=_PROMPT_BYTES,
            fields={"ignore_eos": True},
        )
        for mark in itertools.islice(_MARKS, number)
    ]


def _work(server: LocalServer, streams: int, plan: Plan, grace_seconds: float) -> tuple[Work, int]:
    """What was done, and how many texts ended because their time was over.

    For `grace_seconds` after the load those texts go on that run then; the others are left.
    """
    seconds = plan.warm_up_seconds + plan.seconds + _CALM_SECONDS
    load = StreamLoad(
        port=server.port,
        streams=_texts(int(seconds * _STREAMS_A_SECOND) + streams, TOKENS),
        seconds=seconds,
        closed=streams,
        grace_seconds=grace_seconds,
    )
    results: list[StreamResult] = []
    offered = threading.Thread(target=lambda: results.append(asyncio.run(run_streams(load))))
    with under(offered, plan.warm_up_seconds):
        first = server.counted()
        time.sleep(plan.seconds)
        last = server.counted()
    (result,) = results
    tokens = _tokens(result, first.at, last.at)
    work = Work(
        rate=tokens / (last.at - first.at),
        cpu_seconds=(last.cpu_seconds - first.cpu_seconds) / max(1.0, tokens),
    )
    return work, sum(one.status == _TIMED_OUT or one.error_event for one in result.records)


def _tokens(result: StreamResult, since: float, until: float) -> float:
    """How many came between two moments; of the bins in which they lie, their share."""
    bins = enumerate(result.arrivals)
    begins = ((result.began + number * BIN_SECONDS, count) for number, count in bins)
    return sum(
        count * max(0.0, min(until, begin + BIN_SECONDS) - max(since, begin)) / BIN_SECONDS
        for begin, count in begins
    )


def _cut_by_a_drain(server: LocalServer) -> int:
    """How many texts did not end whole; the server is gone then."""
    records: list[Record] = []

    def offer() -> None:
        texts = _texts(DRAINED_STREAMS, DRAINED_TOKENS)
        load = StreamLoad(
            port=server.port, streams=texts, seconds=1.0, grace_seconds=_DRAIN_SECONDS
        )
        records.extend(asyncio.run(run_streams(load)).records)

    server.go_on()
    with busy_neighbour(), under(threading.Thread(target=offer), _BEGUN_SECONDS):
        server.process.send_signal(signal.SIGTERM)
    cut = [one for one in records if not (one.whole and one.told_end and one.told_reason)]
    return len(cut)
