"""How much of the device the data path uses, and what it adds to a lone request.

Load generator, sidecar and simulated model server are three processes on loopback. The device takes
5 ms + 0.1 ms per row for at most 32 rows, one batch after the other: 3,902 rows a second and no
more, whoever asks. Every figure is a ratio to that device, or to the same device without batching,
within one run.

    python bench/throughput.py [--quick] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_report import Figure, at_least, at_most, print_table, write_json
from load_generator import ClosedLoop, LoadResult, Target, run_load

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from batchedmodel_contract.batching import BatchSettings
from support.chain import Chain, running_chain  # the tests' processes, wired as in a pod

FIXED_SECONDS: Final = 0.005
ROW_SECONDS: Final = 0.0001
MAX_BATCH_SIZE: Final = 32
LIMIT: Final = MAX_BATCH_SIZE / (FIXED_SECONDS + ROW_SECONDS * MAX_BATCH_SIZE)
LONE_SECONDS: Final = FIXED_SECONDS + ROW_SECONDS
CONNECTIONS: Final = 256
BODY: Final = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "INT64", "data": [1, 2, 3, 4]}]}
).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often to measure."""

    rounds: int
    seconds: float
    warm_up_seconds: float


FULL: Final = Plan(rounds=5, seconds=10.0, warm_up_seconds=2.0)
QUICK: Final = Plan(rounds=3, seconds=3.0, warm_up_seconds=1.0)


async def measure(plan: Plan) -> list[Figure]:
    """All figures; each is the median over the rounds, which alternate between the subjects."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with (
            _chain(Path(folder, "batched"), MAX_BATCH_SIZE) as with_batches,
            _chain(Path(folder, "unbatched"), 1) as without,
        ):
            busy, lone, single = [], [], []
            for _ in range(plan.rounds):
                busy.append(await _load(with_batches, CONNECTIONS, plan))
                lone.append(await _load(with_batches, 1, plan))
                single.append(await _load(without, CONNECTIONS, plan))
    return _figures(busy, lone, single)


def _figures(
    busy: Sequence[LoadResult], lone: Sequence[LoadResult], single: Sequence[LoadResult]
) -> list[Figure]:
    shares = [100 * result.rate / LIMIT for result in busy]
    added = [result.latency.p50 / 1e3 - LONE_SECONDS * 1e3 for result in lone]
    tails = [result.latency.p99 / 1e3 - LONE_SECONDS * 1e3 for result in lone]
    gains = [b.rate / s.rate for b, s in zip(busy, single, strict=True)]
    failed = sum(result.requests - result.ok for result in (*busy, *lone, *single))
    return [
        at_least("share of the device's limit, closed loop 256", _mid(shares), "%", 97.0),
        Figure(name="  worst round", value=min(shares), unit="%"),
        Figure(name="answers per second", value=_mid([result.rate for result in busy]), unit="1/s"),
        at_most("added to a lone request, p50", _mid(added), "ms", 1.0),
        Figure(name="added to a lone request, p99", value=_mid(tails), unit="ms"),
        Figure(name="rate against the same device unbatched", value=_mid(gains), unit="x"),
        Figure(name="  limit of that gain", value=LIMIT * LONE_SECONDS, unit="x"),
        at_most("requests that failed", float(failed), "", 0.0),
    ]


def _mid(values: Sequence[float]) -> float:
    return statistics.median(values)


def _chain(folder: Path, max_batch_size: int) -> contextlib.AbstractAsyncContextManager[Chain]:
    return running_chain(
        folder,
        handler="simulated",
        parameters={"fixedSeconds": str(FIXED_SECONDS), "rowSeconds": str(ROW_SECONDS)},
        settings=BatchSettings(max_batch_size=max_batch_size),
    )


async def _load(chain: Chain, connections: int, plan: Plan) -> LoadResult:
    target = Target(
        port=chain.port,
        path=chain.infer_path,
        headers={"Content-Type": "application/json"},
        bodies=[BODY],
    )
    loop = ClosedLoop(
        connections=connections, seconds=plan.seconds, warm_up_seconds=plan.warm_up_seconds
    )
    return await asyncio.to_thread(run_load, target, loop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 whether the goals hold or not, since a figure is not a test."""
    parser = argparse.ArgumentParser(description="Throughput and added latency of the data path.")
    parser.add_argument("--quick", action="store_true", help="within a minute, rougher")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures here")
    options = parser.parse_args(arguments)
    figures = asyncio.run(measure(QUICK if options.quick else FULL))
    print_table(figures)
    if options.json:
        write_json(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
