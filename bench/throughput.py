"""How much of the device the data path uses, and what it adds to a lone request.

Load generator, sidecar and simulated model server are three processes on loopback. The device takes
5 ms + 0.1 ms per row for at most 32 rows, one batch after the other: 3,902 rows a second and no
more, whoever asks. Every figure is a ratio to that device, or to the same device without batching,
within one run.

    python bench/throughput.py [--quick] [--json FILE]
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from batchedmodel_contract.batching import BatchSettings
from bench_report import Figure, at_least, at_most, median_of, new_parser, report
from device_chain import Chain, Plan, device_chain, target
from load_generator import ClosedLoop, LoadResult, run_load

FIXED_SECONDS: Final = 0.005
ROW_SECONDS: Final = 0.0001
MAX_BATCH_SIZE: Final = 32
LIMIT: Final = MAX_BATCH_SIZE / (FIXED_SECONDS + ROW_SECONDS * MAX_BATCH_SIZE)
LONE_SECONDS: Final = FIXED_SECONDS + ROW_SECONDS
CONNECTIONS: Final = 256
BODY: Final = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "INT64", "data": [1, 2, 3, 4]}]}
).encode()

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
    rates = [result.rate for result in busy]
    shares = [100 * rate / LIMIT for rate in rates]
    added = [result.latency.p50 / 1e3 - LONE_SECONDS * 1e3 for result in lone]
    tails = [result.latency.p99 / 1e3 - LONE_SECONDS * 1e3 for result in lone]
    gains = [b.rate / s.rate for b, s in zip(busy, single, strict=True)]
    failed = sum(result.requests - result.ok for result in (*busy, *lone, *single))
    return [
        at_least("share of the device's limit, closed loop 256", median_of(shares), "%", 97.0),
        Figure(name="  worst round", value=min(shares), unit="%"),
        Figure(name="answers per second", value=median_of(rates), unit="1/s"),
        at_most("added to a lone request, p50", median_of(added), "ms", 1.0),
        Figure(name="added to a lone request, p99", value=median_of(tails), unit="ms"),
        Figure(name="rate against the same device unbatched", value=median_of(gains), unit="x"),
        Figure(name="  limit of that gain", value=LIMIT * LONE_SECONDS, unit="x"),
        at_most("requests that failed", float(failed), "", 0.0),
    ]


def _chain(folder: Path, max_batch_size: int) -> AbstractAsyncContextManager[Chain]:
    return device_chain(
        folder,
        fixed_seconds=FIXED_SECONDS,
        row_seconds=ROW_SECONDS,
        settings=BatchSettings(max_batch_size=max_batch_size),
    )


async def _load(chain: Chain, connections: int, plan: Plan) -> LoadResult:
    loop = ClosedLoop(
        connections=connections, seconds=plan.seconds, warm_up_seconds=plan.warm_up_seconds
    )
    return await asyncio.to_thread(run_load, target(chain, BODY), loop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser("Throughput and added latency of the data path.").parse_args(arguments)
    return report(asyncio.run(measure(QUICK if options.quick else FULL)), options.json)


if __name__ == "__main__":
    sys.exit(main())
