"""Long prompts beside texts that stream, where no target between tokens is set.

SmolLM2-135M-Instruct through both processes, on all CPUs. Four texts stream; every few seconds a
prompt of 2,000 tokens comes, each another, and is read beside them. Times between tokens count from
the prompt's arrival to its first token, of all four texts together.

With another checkout the same is measured there, in rounds that take turns: what the bound costs
the prompt's own first token, and the tokens that are read and written in a second.
"""

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from bench_report import Figure, at_most, of_rounds, tell
from smollm2 import checkpoint
from support.beside_texts import texts_running, token_times
from support.chain import Chain, running_chain

TEXTS: Final = 4
PROMPT_TOKENS: Final = 2000
MOST_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.5
"""Between a prompt's first token and the next prompt."""
_PLAIN_SECONDS: Final = 3.0
"""Of texts before the first prompt."""
_PACKAGES: Final = ("contract", "scheduling", "http", "sidecar", "model_server")
_VOCABULARY: Final = 40_000
_NOW: Final = "now"
_BEFORE: Final = "before"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What one round has shown; in seconds."""

    plain: float
    """Median between two tokens without a prompt."""
    p95: float
    longest: float
    first_token: float
    """Median of the prompts'."""
    rate: float
    """Tokens read and written in a second, from the first prompt to the last first token."""


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """All of them."""
    return asyncio.run(_measured(before, rounds=1 if quick else 5, prompts=2 if quick else 4))


async def _measured(before: Path | None, *, rounds: int, prompts: int) -> list[Figure]:
    folder = await asyncio.to_thread(checkpoint)
    found: dict[str, list[_Round]] = {
        name: [] for name in (_NOW, _BEFORE)[: 1 + (before is not None)]
    }
    for number in range(rounds):
        for name, seen in found.items():
            tell(f"prompts beside texts: {name}, round {number + 1} of {rounds}")
            async with _chain(folder, before if name == _BEFORE else None) as chain:
                seen.append(await _round(chain, prompts, seed=number))
    return [figure for name, seen in found.items() for figure in _figures(name, seen)]


def _figures(name: str, rounds: Sequence[_Round]) -> list[Figure]:
    what = f"{TEXTS} texts beside a prompt of {PROMPT_TOKENS:,}, no target, {name}"
    p95 = f"{what}: between tokens, p95"

    def judged(value: float) -> Figure:
        if name == _BEFORE:
            return Figure(name=p95, value=value, unit="ms")
        return at_most(p95, value, "ms", 1000 * MOST_SECONDS)

    def plain(told: str, unit: str, values: Sequence[float]) -> Figure:
        return of_rounds(
            lambda value: Figure(name=f"{what}: {told}", value=value, unit=unit), values
        )

    return [
        of_rounds(judged, [1000 * one.p95 for one in rounds]),
        plain("between tokens, longest", "ms", [1000 * one.longest for one in rounds]),
        plain("between tokens without a prompt", "ms", [1000 * one.plain for one in rounds]),
        plain("first token of the prompt", "s", [one.first_token for one in rounds]),
        plain("tokens read and written", "1/s", [one.rate for one in rounds]),
    ]


@asynccontextmanager
async def _chain(folder: Path, checkout: Path | None) -> AsyncIterator[Chain]:
    """Both processes, of another checkout where one is given."""
    async with AsyncExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        before = os.environ.get("PYTHONPATH")
        if checkout is not None:
            os.environ["PYTHONPATH"] = os.pathsep.join(str(checkout / one) for one in _PACKAGES)
        try:
            chain = await stack.enter_async_context(
                running_chain(
                    Path(name),
                    handler="hf",
                    source={"path": str(folder)},
                    # It embeds as well; what that would take need not be found out.
                    settings=BatchSettings(max_batch_size=1),
                )
            )
        finally:
            os.environ.pop("PYTHONPATH", None)
            if before is not None:
                os.environ["PYTHONPATH"] = before
        yield chain


async def _round(chain: Chain, prompts: int, seed: int) -> _Round:
    chance, spans = random.Random(seed), list[tuple[float, float]]()
    async with texts_running(chain, TEXTS, tokens=4000) as arrived:
        await asyncio.sleep(_PLAIN_SECONDS)
        for _ in range(prompts):
            ids = [chance.randrange(100, _VOCABULARY) for _ in range(PROMPT_TOKENS)]
            began = time.monotonic()
            (first,) = await token_times(chain, 1, ids)
            spans.append((began, first))
            await asyncio.sleep(_PAUSE_SECONDS)
    pairs = [pair for one in arrived for pair in pairwise(one)]
    beside = sorted(
        later - one
        for one, later in pairs
        if any(began < later and one < first for began, first in spans)
    )
    begins, ends = spans[0][0], spans[-1][1]
    written = sum(begins <= at <= ends for one in arrived for at in one)
    return _Round(
        plain=statistics.median([later - one for one, later in pairs if later < begins]),
        p95=beside[int(0.95 * len(beside))],
        longest=beside[-1],
        first_token=statistics.median([first - began for began, first in spans]),
        rate=(written + prompts * PROMPT_TOKENS) / (ends - begins),
    )
