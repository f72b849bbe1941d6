"""Answers that do not stream: how many are whole in their time, and what is computed for nothing.

An engine of 16 places makes a token of each every 30 ms; answers have 100 tokens, so 3 s, of 4 s
that each caller allows. 48 callers ask for 20 s, each again as soon as it has its answer, and after
a refusal when that says (`retry-after-ms`). So the places could make 106 answers. Sidecar and
engine are processes of their own on 127.0.0.1, without compiled modules: our model server with its
simulated generator, and the simulated server of others that speaks OpenAI's protocol, which says in
`/simulate` how many tokens it has made. A quick run is as long as three answers of 0.9 s.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes import sidecar_metrics as names
from bench_report import Figure, at_least, at_most, of_rounds, tell
from stream_chain import engine
from support.chain import Chain, in_front_of, running_chain
from support.engine import EngineSettings
from support.whole_answers import WholeLoad, ask_whole

PLACES: Final = 16
CALLERS: Final = 48
STEP_SECONDS: Final = 0.03
LEAST_SHARE: Final = 0.85
MOST_THROWN_AWAY_PERCENT: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often, for how long, and what is asked."""

    rounds: int
    seconds: float
    tokens: int
    allowed_seconds: float

    @property
    def possible(self) -> float:
        """Answers that the places make in that time."""
        return PLACES * self.seconds / (self.tokens * STEP_SECONDS)


FULL: Final = Plan(rounds=3, seconds=20.0, tokens=100, allowed_seconds=4.0)
QUICK: Final = Plan(rounds=1, seconds=5.0, tokens=30, allowed_seconds=1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A round."""

    share: float
    """Answers whole in time, of those that the places could make."""
    thrown_away: float
    """Tokens that no answer has, in percent of all that were made."""


TokensMade = Callable[[], Awaitable[float]]


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """Of both kinds of engines; nothing is compared with `before`."""
    return asyncio.run(_measure(QUICK if quick else FULL))


async def _measure(plan: Plan) -> list[Figure]:
    found: list[Figure] = []
    for what, start in (("our engine", _ours), ("another server", _another)):
        rounds = []
        for number in range(plan.rounds):
            tell(f"whole answers of {what}, round {number + 1}")
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                async with start(Path(folder)) as (chain, made):
                    rounds.append(await _round(chain, made, plan, seed=number))
        found += _figures(what, rounds, plan)
    return found


async def _round(chain: Chain, made: TokensMade, plan: Plan, *, seed: int) -> Asked:
    """Of an engine that was asked nothing before: all that is learnt is learnt in it."""
    load = WholeLoad(
        callers=CALLERS,
        seconds=plan.seconds,
        allowed_seconds=plan.allowed_seconds,
        tokens=lambda chance: plan.tokens,
        seed=seed,
    )
    seen = await ask_whole(chain, load)
    share = seen.in_time / plan.possible
    return Asked(share=share, thrown_away=100 * (1 - seen.tokens / await made()))


def _figures(what: str, rounds: list[Asked], plan: Plan) -> list[Figure]:
    name = f"answers in one piece of {what}, {PLACES} places, {CALLERS} callers, "
    name += f"{plan.tokens * STEP_SECONDS:g} s each of {plan.allowed_seconds:g} s"

    def share(value: float) -> Figure:
        return at_least(f"{name}: whole in time, of what the places can", value, "", LEAST_SHARE)

    def thrown_away(value: float) -> Figure:
        told = f"{name}: tokens thrown away"
        return at_most(told, value, "%", MOST_THROWN_AWAY_PERCENT)

    return [
        of_rounds(share, [one.share for one in rounds]),
        of_rounds(thrown_away, [one.thrown_away for one in rounds]),
    ]


@contextlib.asynccontextmanager
async def _ours(folder: Path) -> AsyncIterator[tuple[Chain, TokensMade]]:
    parameters = {"generates": "true", "stepSeconds": str(STEP_SECONDS)}
    settings = BatchSettings(max_sequences=PLACES)
    async with running_chain(
        folder, handler="simulated", parameters=parameters, settings=settings
    ) as chain:
        yield chain, lambda: chain.metric(names.OUTPUT_TOKENS)


@contextlib.asynccontextmanager
async def _another(folder: Path) -> AsyncIterator[tuple[Chain, TokensMade]]:
    async with (
        engine(EngineSettings(max_num_seqs=PLACES, step_seconds=STEP_SECONDS)) as behind,
        in_front_of(
            behind.url,
            folder,
            upstream_protocol=ServerProtocol.OPENAI,
            settings=BatchSettings(max_concurrent_requests=PLACES),
        ) as chain,
    ):
        await chain.ready()

        async def made() -> float:
            async with chain.session.get(f"{behind.url}/simulate") as response:
                counts = await response.json()
                return float(counts["generated_tokens"])

        yield chain, made
