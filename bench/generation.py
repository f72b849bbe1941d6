"""How an engine of our own plans its steps, against how others plan theirs, in simulated time.

Prompts and answers are as long as those of a public trace of conversations, arrivals are Poisson.
The engine has 64 sequences and 4,096 blocks of 16 tokens; a step takes 12 ms, 60 us more for each
token of a prompt, 0.15 ms for each sequence and 0.05 us for each token in the cache. Ours is the
sidecar's `Admission` before a `StepPlanner`; rivals take who comes first, and no request that ours
refused. Capacity is the best rival's: the highest rate at which 99 % meet both targets.

All requests have the same time, and what ours refused nobody has to do: so whoever takes those who
come first and wastes nothing has as many in time as ours, and only rivals that waste have fewer.
What it is worth to refuse by room instead of by a plain limit is told beside that.

Then our engine itself on a CPU, against what transformers offers (`engine_rivals`); a quick run
leaves out the slow ones of these. At last the same engine through sidecar and model server
(`generation_chain`).

    python bench/generation.py [--quick] [--json FILE]
"""

import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from batchedmodel_cli.simulator.planned_engine import PlannedEngine, Planner
from batchedmodel_cli.simulator.token_engine import Call
from batchedmodel_cli.simulator.token_pods import TokenPod
from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.engine.step_planner import StepPlanner, StepSettings
from batchedmodel_scheduling.generation.admission import Admission, AdmissionSettings, EngineLimits
from batchedmodel_scheduling.latency.step_times import StepCost
from bench_report import Figure, at_least, at_most, new_parser, report, tell
from engine_rivals import measure_rivals, restart_as_in_image
from generation_chain import measure_chain
from step_rivals import FixedBudget, PromptsFirst, StaticBatches

COST: Final = StepCost(base=0.012, prefill_token=60e-6, sequence=0.15e-3, context_token=0.05e-6)
SETTINGS: Final = StepSettings(
    max_sequences=64, max_tokens_per_step=2048, block_tokens=16, blocks=4096
)
FIRST_TOKEN: Final = 2.0
TOKEN: Final = 0.060
"""Targets, in seconds: of the first token, and of the mean time between two."""
_PATIENCE: Final = 30.0
_LONGEST: Final = 8192
_TRACE: Final = Path(__file__).parent / "data" / "azure_conversation.csv"
_PARTLY: Final = 0.7
_OVERLOAD: Final = 1.3
_MEETING: Final = 0.99
_HALVINGS: Final = 6
_WARM_UP: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long each load is, in virtual seconds, and how many draws there are of each."""

    seconds: float
    draws: int


_FULL: Final = Plan(seconds=400.0, draws=5)
_QUICK: Final = Plan(seconds=120.0, draws=1)
_RIVALS: Final[dict[str, Callable[[], Planner]]] = {
    "prompts first": lambda: PromptsFirst(SETTINGS),
    "a fixed budget of 2,048": lambda: FixedBudget(SETTINGS),
    "a fixed budget of 512": lambda: FixedBudget(replace(SETTINGS, max_tokens_per_step=512)),
    "static batches": lambda: StaticBatches(SETTINGS),
}
_LIMITS: Final = (40, 44, 48, 52, 56)
"""Requests that a plain limit lets be there at once; all others are refused."""
_OUTPUTS: Final[dict[int, int]] = {}
"""Of the calls of the present run: what only the oracle knows."""


class _Watched(PlannedEngine):
    """Notes the times between tokens, each by itself: a mean hides a stop in the middle."""

    def __init__(self, planner: Planner) -> None:
        super().__init__(planner, COST)
        self.gaps: Final[list[float]] = []
        self._last: Final[dict[Call, float]] = {}

    def end(self) -> list[Call]:
        """As the engine itself."""
        now = self.ends_at
        told = super().end()
        for call in told:
            if (before := self._last.pop(call, None)) is not None and before >= _WARM_UP:
                self.gaps.append(now - before)
            if call.given < call.output:
                self._last[call] = now
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What became of one draw."""

    calls: Sequence[Call]
    between: float
    """Seconds between two tokens, which one of a hundred passes."""


@cache
def _pairs() -> list[tuple[int, int]]:
    """Tokens of prompts and of their answers."""
    trace = read_trace(_TRACE.read_text(encoding="utf-8"))
    assert trace.outputs is not None, "the trace has a column output"
    pairs = zip(trace.lengths, trace.outputs, strict=True)
    return [(prompt, output) for prompt, output in pairs if prompt + output <= _LONGEST]


def _drawn(rate: float, seconds: float, seed: int) -> list[Call]:
    """Calls as they come; the same for the same seed."""
    pairs = _pairs()
    rng, at, calls = random.Random(seed), 0.0, list[Call]()
    while (at := at + rng.expovariate(rate)) < seconds:
        prompt, output = rng.choice(pairs)
        calls.append(
            Call(
                number=len(calls),
                share=Share(f"tenant {rng.randrange(20)}"),
                prompt=prompt,
                output=output,
                arrived=at,
                patience=_PATIENCE,
            )
        )
    return calls


def _run(calls: Iterable[Call], planner: Planner, admission: Admission | None) -> Seen:
    """What becomes of such calls."""
    mine = [replace(call) for call in calls]
    _OUTPUTS.clear()
    _OUTPUTS.update((call.number, call.output) for call in mine)
    engine = _Watched(planner)
    pod = TokenPod(engine, admission)
    for call in mine:
        pod.arrive(call)
    pod.advance(mine[-1].arrived + 4 * _PATIENCE)
    return Seen(calls=mine, between=_percentile(engine.gaps, 0.99))


def _ours(calls: Iterable[Call]) -> Seen:
    admission = Admission(
        AdmissionSettings(
            first_token_seconds=FIRST_TOKEN,
            token_seconds=TOKEN,
            lateness=Lateness.REFUSE,
            engine=EngineLimits(
                max_sequences=SETTINGS.max_sequences,
                max_tokens_per_step=SETTINGS.max_tokens_per_step,
                blocks=SETTINGS.blocks,
                block_tokens=SETTINGS.block_tokens,
                cost=COST,
            ),
        )
    )
    return _run(calls, StepPlanner(replace(SETTINGS, token_seconds=TOKEN), COST), admission)


def _judged(calls: Sequence[Call]) -> list[Call]:
    """Those that came when the engine was warm and had time to end."""
    last = calls[-1].arrived
    return [call for call in calls if _WARM_UP <= call.arrived <= last - _WARM_UP]


def _good(calls: Sequence[Call]) -> float:
    """The part of the calls that met both targets."""
    judged = _judged(calls)
    return sum(call.good(FIRST_TOKEN, TOKEN) for call in judged) / len(judged)


def _capacity(rival: Callable[[], Planner], plan: Plan) -> float:
    """Calls a second of which nearly all meet both targets."""
    low, high = 0.0, 16.0
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        draws = range(plan.draws)
        shares = [
            _good(_run(_drawn(rate, plan.seconds, seed), rival(), None).calls) for seed in draws
        ]
        low, high = (rate, high) if statistics.median(shares) >= _MEETING else (low, rate)
    return low


def _percentile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _first(calls: Sequence[Call]) -> float:
    return _percentile((call.first_token for call in _judged(calls)), 0.5)


def measure(plan: Plan) -> list[Figure]:
    """All figures; medians over the draws."""
    capacities = {name: _capacity(rival, plan) for name, rival in _RIVALS.items()}
    capacity = max(capacities.values())
    tell(f"capacities: {capacities}")
    between, later, ours_at, theirs_at = [], [], [], []
    goodput: dict[str, list[float]] = {name: [] for name in ("ours", "oracle", *_RIVALS)}
    limited: dict[int, list[float]] = {limit: [] for limit in _LIMITS}
    refused = []
    for seed in range(100, 100 + plan.draws):
        calls = _drawn(_PARTLY * capacity, plan.seconds, seed)
        ours, theirs = _ours(calls), _run(calls, PromptsFirst(SETTINGS), None)
        ours_at.append(ours.between)
        theirs_at.append(theirs.between)
        between.append(ours.between / theirs.between)
        later.append(_first(ours.calls) / _first(theirs.calls))
        calls = _drawn(_OVERLOAD * capacity, plan.seconds, seed + 100)
        ours = _ours(calls)
        share = len(_judged(calls)) / (plan.seconds - 2 * _WARM_UP)
        goodput["ours"].append(_good(ours.calls) * share)
        taken = [call for call, found in zip(calls, ours.calls, strict=True) if found.gone is None]
        refused.append(1 - len(taken) / len(calls))
        part = len(_judged(taken)) / (plan.seconds - 2 * _WARM_UP)
        for name, rival in _RIVALS.items():
            goodput[name].append(_good(_run(taken, rival(), None).calls) * part)
        oracle = FixedBudget(SETTINGS, lambda one: _OUTPUTS[one.id])
        goodput["oracle"].append(_good(_run(taken, oracle, None).calls) * part)
        for limit, found in limited.items():
            plain = Admission(AdmissionSettings(max_concurrent_requests=limit, max_queue_size=1))
            found.append(_good(_run(calls, FixedBudget(SETTINGS), plain).calls) * share)
    best = max(statistics.median(goodput[name]) for name in _RIVALS)
    plainly = max(statistics.median(found) for found in limited.values())
    return [
        *(
            Figure(name=f"capacity, {name}", value=value, unit="/s")
            for name, value in capacities.items()
        ),
        at_most(
            "0.7 of capacity: time between tokens, p99, over prompts first's",
            statistics.median(between),
            "x",
            0.35,
        ),
        at_most(
            "0.7 of capacity: median first token over prompts first's",
            statistics.median(later),
            "x",
            1.4,
        ),
        Figure(
            name="0.7 of capacity: time between tokens, p99",
            value=1e3 * statistics.median(ours_at),
            unit="ms",
        ),
        Figure(
            name="0.7 of capacity, prompts first: time between tokens, p99",
            value=1e3 * statistics.median(theirs_at),
            unit="ms",
        ),
        at_least(
            "1.3 x capacity: goodput over the best rival's, given our refusals",
            statistics.median(goodput["ours"]) / best,
            "x",
            1.15,
        ),
        Figure(name="1.3 x capacity: refused", value=100 * statistics.median(refused), unit="%"),
        *(
            Figure(
                name=f"1.3 x capacity: goodput, {name}", value=statistics.median(found), unit="/s"
            )
            for name, found in goodput.items()
        ),
        Figure(
            name="1.3 x capacity: goodput, a fixed budget behind the best of plain limits",
            value=plainly,
            unit="/s",
        ),
        Figure(
            name="1.3 x capacity: goodput over that of the best of plain limits",
            value=statistics.median(goodput["ours"]) / plainly,
            unit="x",
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser(__doc__).parse_args(arguments)
    restart_as_in_image()
    plan = _QUICK if options.quick else _FULL
    engines = measure_rivals(plan.draws, quick=options.quick)
    chain = measure_chain(quick=options.quick)
    return report([*measure(plan), *engines, *chain], options.json)


if __name__ == "__main__":
    sys.exit(main())
