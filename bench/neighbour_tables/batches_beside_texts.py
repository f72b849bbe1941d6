"""Batches of embeddings and steps of texts that share one device, through both processes.

The device is simulated: a step takes 20 ms, a batch of 32 rows 400 ms, of which 4 ms are any
batch's. Two callers always have their next 32 rows there, alone and then beside one text that
streams, with a target of 50 ms between tokens. Times between tokens are taken where the text is
read; rows are counted as they are answered.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from bench_report import Figure, at_least, at_most, of_rounds, tell
from support.beside_texts import rows_asked, token_times
from support.chain import Chain, running_chain

STEP: Final = 0.020
TARGET: Final = 0.050
BATCH: Final = 0.400
ROWS: Final = 32
_FIXED: Final = 0.004
_CALLERS: Final = 2
_FIRST_TOKENS: Final = 10
"""Of each text, that are not looked at: a batch that began before the text ends among them."""
_PARAMETERS: Final = {
    "generates": "true",
    "stepSeconds": str(STEP),
    "fixedSeconds": str(_FIXED),
    "rowSeconds": str((BATCH - _FIXED) / ROWS),
}


class _Round:
    """What one round has shown."""

    def __init__(self, gaps: Sequence[float], alone: float, beside: float) -> None:
        self.mean: Final = 1000 * statistics.fmean(gaps)
        self.p95: Final = 1000 * sorted(gaps)[int(0.95 * len(gaps))]
        self.share: Final = beside / alone
        self.steps: Final = len(gaps) * STEP / sum(gaps)


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """All of them. `before` is not used: the goals are fixed numbers."""
    return asyncio.run(_measured(rounds=1 if quick else 5, seconds=3.0 if quick else 8.0))


async def _measured(*, rounds: int, seconds: float) -> list[Figure]:
    settings = BatchSettings(max_batch_size=ROWS, target_token_seconds=TARGET)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        async with running_chain(
            Path(name), handler="simulated", parameters=_PARAMETERS, settings=settings
        ) as chain:
            done = []
            for number in range(rounds):
                tell(f"batches beside texts: round {number + 1} of {rounds}")
                done.append(await _round(chain, seconds))
    what = "batches of 400 ms beside steps of 20 ms, target 50 ms"

    return [
        of_rounds(
            lambda value: at_most(f"{what}: between tokens, mean", value, "ms", 50),
            [one.mean for one in done],
        ),
        of_rounds(
            lambda value: at_most(f"{what}: between tokens, p95", value, "ms", 55),
            [one.p95 for one in done],
        ),
        of_rounds(
            lambda value: at_least(f"{what}: rate of rows over alone", value, "", 0.4),
            [one.share for one in done],
        ),
        of_rounds(
            lambda value: Figure(name=f"{what}: share of steps", value=value, unit=""),
            [one.steps for one in done],
        ),
    ]


async def _round(chain: Chain, seconds: float) -> _Round:
    async with rows_asked(chain, ROWS, _CALLERS) as answered:
        await asyncio.sleep(2 * BATCH)
        before, began = answered.count, time.monotonic()
        await asyncio.sleep(seconds)
        alone = (answered.count - before) / (time.monotonic() - began)
        text = asyncio.create_task(token_times(chain, int(seconds / TARGET) + _FIRST_TOKENS))
        await asyncio.sleep(2 * BATCH)
        before, began = answered.count, time.monotonic()
        times = await text
        beside = (answered.count - before) / (time.monotonic() - began)
    gaps = [later - one for one, later in pairwise(times[_FIRST_TOKENS:])]
    return _Round(gaps, alone, beside)
