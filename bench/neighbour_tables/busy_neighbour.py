"""MiniLM in float32 beside a busy neighbour against the same without, and against another commit.

A busy neighbour is one process in an endless loop. 8 and 64 callers, one text a request; answers
and CPU of sidecar and model server are counted over some seconds in the middle of the load, by the
sidecar's own metrics and by the kernel. Rounds take turns; figures are medians of rounds' ratios.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchedmodel_contract.outcomes import Outcome
from batchedmodel_contract.processes.sidecar_metrics import REQUESTS_SETTLED
from bench_report import Figure, at_least, at_most, of_rounds, plain, tell
from embedding_load import EMBEDDINGS, embed
from embedding_rivals import SOURCE
from load_generator import ClosedLoop
from local_server import LocalServer, busy_neighbour, ours

CALLERS: Final = (8, 64)
LEAST_RATE: Final = 0.5
MOST_CPU: Final = 1.2
LEAST_OVER_BEFORE: Final = 0.97
"""Beside a neighbour over without; and without one over the other commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often and how long to measure."""

    rounds: int
    seconds: float
    warm_up_seconds: float


FULL: Final = Plan(rounds=5, seconds=8.0, warm_up_seconds=2.0)
QUICK: Final = Plan(rounds=1, seconds=2.0, warm_up_seconds=1.0)
_CALM_SECONDS: Final = 0.5
"""For which the load lasts longer than what is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of some seconds under load."""

    rate: float
    """Answers or tokens a second."""
    cpu_seconds: float
    """Of sidecar and model server, for each."""


Rounds = Mapping[str, Sequence[Work]]
IDLE: Final = "idle"
BESIDE: Final = "beside a neighbour"
BEFORE: Final = "before"
"""On an idle machine, by the other commit."""


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """The table."""
    plan = QUICK if quick else FULL
    model = {"source": SOURCE, "parameters": {"dtype": "float32"}}
    with ExitStack() as stack:
        now = stack.enter_context(ours("ours", checkout=None, model=model, path=EMBEDDINGS))
        other = None
        if before is not None:
            other = stack.enter_context(
                ours("before", checkout=before, model=model, path=EMBEDDINGS)
            )
        for server in [now] if other is None else [now, other]:
            with server.going_on():  # warms up
                embed(server, ClosedLoop(connections=max(CALLERS), seconds=plan.seconds))
        found: dict[int, dict[str, list[Work]]] = {
            callers: {name: [] for name in conditions(other)} for callers in CALLERS
        }
        for number in range(plan.rounds):
            for name, server in in_turns(now, other, number):
                for callers in CALLERS:
                    work = _work(server, callers, plan)
                    tell(f"MiniLM, {callers} callers, {name}: {work.rate:.1f} 1/s")
                    found[callers][name].append(work)
    return [
        figure
        for callers in CALLERS
        for figure in compared(f"MiniLM, {callers} callers", "request", found[callers])
    ]


def conditions(other: LocalServer | None) -> Sequence[str]:
    """What is measured in each round."""
    return (IDLE, BESIDE) if other is None else (IDLE, BESIDE, BEFORE)


def in_turns(
    now: LocalServer, other: LocalServer | None, number: int
) -> Iterator[tuple[str, LocalServer]]:
    """A round: which server to measure under which condition, as often the one first as the other.

    The condition holds, and the server goes on, until the next one is asked for.
    """
    idle = [(IDLE, now)] if other is None else [(IDLE, now), (BEFORE, other)]
    for name, server in [*(reversed(idle) if number % 2 else idle), (BESIDE, now)]:
        with busy_neighbour() if name == BESIDE else nullcontext(), server.going_on():
            yield name, server


@contextmanager
def under(load: threading.Thread, warm_up_seconds: float) -> Iterator[None]:
    """A load that has run for a while at the beginning, and ends by itself afterwards."""
    load.start()
    time.sleep(warm_up_seconds)
    yield
    load.join()


def _work(server: LocalServer, callers: int, plan: Plan) -> Work:
    seconds = plan.warm_up_seconds + plan.seconds + _CALM_SECONDS
    load = threading.Thread(
        target=embed,
        args=(server, ClosedLoop(connections=callers, seconds=seconds)),
    )
    with under(load, plan.warm_up_seconds):
        first = server.counted()
        time.sleep(plan.seconds)
        last = server.counted()
    answers = last.since(first, REQUESTS_SETTLED, outcome=Outcome.COMPLETED)
    return Work(
        rate=answers / (last.at - first.at),
        cpu_seconds=(last.cpu_seconds - first.cpu_seconds) / max(1.0, answers),
    )


def compared(what: str, unit: str, rounds: Rounds) -> list[Figure]:
    """The figures of one load; `unit` is what is counted."""

    def ratios(name: str, other: str, value: str) -> list[float]:
        pairs = zip(rounds[name], rounds[other], strict=True)
        return [getattr(one, value) / (getattr(two, value) or float("nan")) for one, two in pairs]

    rate, cpu = f"{what}: {unit}s a second", f"{what}: CPU per {unit}"
    compared = [
        of_rounds(
            lambda value: at_least(f"{rate}, {BESIDE} over {IDLE}", value, "x", LEAST_RATE),
            ratios(BESIDE, IDLE, "rate"),
        ),
        of_rounds(
            lambda value: at_most(f"{cpu}, {BESIDE} over {IDLE}", value, "x", MOST_CPU),
            ratios(BESIDE, IDLE, "cpu_seconds"),
        ),
    ]
    if BEFORE in rounds:
        compared.append(
            of_rounds(
                lambda value: at_least(f"{rate}, now over before", value, "x", LEAST_OVER_BEFORE),
                ratios(IDLE, BEFORE, "rate"),
            )
        )
    for name, works in rounds.items():
        compared += [
            of_rounds(plain(f"{rate}, {name}", "1/s"), [work.rate for work in works]),
            of_rounds(plain(f"{cpu}, {name}", "ms"), [1000 * work.cpu_seconds for work in works]),
        ]
    return compared
