"""How well the number of pods follows the load: every figure that we claim for scaling.

All is simulated in virtual time: the HPA is the one that the operator renders of a manifest, the
autoscaler's windows and formula are its own, and the HPA's arithmetic is that of a running
controller. A value is the worst of all seeds. Beside the metric `Load` stands `QueueLength`, which
most models elsewhere are scaled on.

    python bench/autoscaling.py [--quick] [--json FILE]
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from autoscaling_loop import loop as simulated_loop
from autoscaling_loop.hpa import read_autoscaler
from autoscaling_loop.loop import Load, Outage, Result, Setup, run
from autoscaling_loop.pods import Device
from autoscaling_loop.text_pods import TextDevice
from autoscaling_text import STARTUP_SECONDS, text_device
from batchedmodel_autoscaler.cluster.objects import read_model
from batchedmodel_autoscaler.replicas.formula import (
    outstanding,
    queue_length,
    queue_wait,
    required_replicas,
)
from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_kube.capacity import FIELD, Capacity
from batchedmodel_kube.manifest.workload import ScalingMetric
from batchedmodel_kube.names import GROUP, VERSION
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import model_from
from batchedmodel_operator.render.autoscaler import autoscaler
from bench_report import Figure, at_least, at_most, new_parser, report

MOST_COST: Final = 1.10
LEAST_ON_TIME: Final = 0.97
MOST_REVERSALS: Final = 1.0
AZURE_CONVERSATION: Final = Path(__file__).parent / "data" / "azure_conversation.csv"
_PROCESSES: Final = 2
_FULL: Final = range(2001, 2004)
_QUICK: Final = range(2001, 2002)
_DEVICE: Final = Device(
    fixed=0.030,
    per_row=0.0015,
    max_batch_size=32,
    target_seconds=0.4,
    timeout_seconds=10.0,
    max_queue_size=1024,
)
_HURRIED: Final = replace(_DEVICE, target_seconds=0.1)
"""Its target leaves time for batches of 13 rows, with which it does 64 % of what full ones do."""
_HEAVY: Final = Device(
    fixed=1.0,
    per_row=4.0,
    max_batch_size=4,
    target_seconds=60.0,
    timeout_seconds=120.0,
    max_queue_size=64,
)
"""Of its rows only a few come in a minute, which is noise to any rate."""
_STARTUP_SECONDS: Final = 60.0
_SLOW_STARTUP_SECONDS: Final = 300.0
_MOST_PODS: Final = 12
_DECISIONS: Final = {
    ScalingMetric.LOAD: required_replicas,
    ScalingMetric.QUEUE_LENGTH: queue_length,
    ScalingMetric.CONCURRENCY: outstanding,
    ScalingMetric.QUEUE_TIME: queue_wait,
}
_QUIET: Final = simulated_loop.steps("constant load", (900, 4.0))
_BLACKOUT: Final = (300.0, 360.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A way to scale; a name of its own."""

    name: str
    wishes: Mapping[str, object]
    """The manifest's `autoscaling`."""
    startup_seconds: float = _STARTUP_SECONDS
    device: Device | TextDevice = _DEVICE


_PLAIN: Final = {"maxReplicas": _MOST_PODS}
_BY_QUEUE: Final = _PLAIN | {"metric": "QueueLength"}
_STOCK: Final[dict[str, object]] = {"scaleUp": {}, "scaleDown": {}}
DEFAULT: Final = Scaling(name="Load", wishes=_PLAIN)
FAST: Final = Scaling(name="Load, Fast", wishes=_PLAIN | {"profile": "Fast"})
CONSERVATIVE: Final = Scaling(
    name="Load, Conservative", wishes=_PLAIN | {"profile": "Conservative"}
)
QUEUE: Final = Scaling(name="QueueLength", wishes=_BY_QUEUE)
CONCURRENCY: Final = Scaling(name="Concurrency", wishes=_PLAIN | {"metric": "Concurrency"})
WAIT: Final = Scaling(
    name="QueueTime", wishes=_PLAIN | {"metric": "QueueTime", "targetQueueTimeMilliseconds": 200}
)
STOCK_QUEUE: Final = Scaling(
    name="QueueLength, Kubernetes' behaviour", wishes=_BY_QUEUE | {"behavior": _STOCK}
)
_RIVALS: Final = (QUEUE, STOCK_QUEUE, CONCURRENCY, WAIT)
HURRIED: Final = replace(DEFAULT, name="Load, target 100 ms", device=_HURRIED)
HEAVY: Final = replace(DEFAULT, name="Load, rows of 4 s", device=_HEAVY)
TEXT: Final = Scaling(
    name="Load, text, 32 at once",
    wishes=_PLAIN,
    startup_seconds=STARTUP_SECONDS,
    device=text_device(limited=True),
)
LEARNT: Final = replace(TEXT, name="Load, text, learnt", device=text_device(limited=False))
"""Of text a request is on time whose first token is."""
SLOW: Final = replace(DEFAULT, name="Load, start-up 300 s", startup_seconds=_SLOW_STARTUP_SECONDS)


def spec_of(scaling: Scaling) -> dict[str, object]:
    """Of a manifest with nothing but bounds and this way to scale."""
    return {"model": {"handler": "simulated"}, "autoscaling": scaling.wishes}


def setup_of(scaling: Scaling, seed: int, outages: tuple[Outage, ...] = ()) -> Setup:
    """The loop as such a manifest makes it, once pods have shown how long they take to start."""
    learnt = Capacity(revision="bench", startup_seconds=scaling.startup_seconds)
    manifest = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": Kind.BATCHED_MODEL.value,
        "metadata": {"name": "model", "namespace": "bench", "uid": "bench", "generation": 1},
        "spec": spec_of(scaling),
        "status": {FIELD: learnt.to_mapping(at="2026-11-22T00:00:00Z")},
    }
    model = model_from(manifest)
    if model.spec is None or model.spec.autoscaling is None:
        raise ValueError(f"{scaling.name}: {model.mistakes}")
    wishes = model.spec.autoscaling
    rendered = autoscaler(model, model.spec, wishes)["spec"]
    return Setup(
        device=scaling.device,
        autoscaler=read_autoscaler(rendered),
        target=read_model(manifest).target,
        startup_seconds=scaling.startup_seconds,
        decide=_DECISIONS[wishes.metric],
        outages=outages,
        sync_offset=seed * 4,  # where within its fifteen seconds the load meets the HPA
    )


def step() -> Load:
    """Four times as much, for good."""
    return simulated_loop.steps("x4 step", (600, 2.0), (2400, 8.0))


def ramp() -> Load:
    """Four times as much within twenty minutes, and back."""
    return simulated_loop.ramp("ramp", 2.0, 8.0, rest=600, climb=1200)


def low_ramp() -> Load:
    """Half of it, which in small batches keeps as many pods busy."""
    return simulated_loop.ramp("low ramp", 1.2, 4.8, rest=600, climb=1200)


def sine() -> Load:
    """Between the same bounds, once an hour."""
    return simulated_loop.sine("sine", 2.0, 8.0, period=3600, periods=2)


def hour() -> Load:
    """Nearly nothing, a rush, half of it, nearly nothing."""
    return simulated_loop.steps("rush hour", (600, 0.15), (1200, 3.4), (1200, 1.7), (600, 0.15))


def trace() -> Load:
    """Azure's conversations, their rate in every ten seconds scaled to four pods on average."""
    times = read_trace(AZURE_CONVERSATION.read_text(encoding="utf-8")).times
    return simulated_loop.recorded("trace", [at / 1e9 for at in times], bin_seconds=10.0, mean=4.0)


def quiet() -> Load:
    """Four pods' capacities all the time."""
    return _QUIET


OUTAGES: Final = {
    "60 s without any metric": Outage(start=_BLACKOUT[0], end=_BLACKOUT[1]),
    "60 s without half of the pods": Outage(start=_BLACKOUT[0], end=_BLACKOUT[1], silent_share=0.5),
    "autoscaler restarted": Outage(start=_BLACKOUT[0], end=_BLACKOUT[0] + 5, forgets=True),
}


def once(
    scaling: Scaling, load: Callable[[], Load], seed: int, outages: tuple[Outage, ...] = ()
) -> Result:
    """One run; a load is named by its function, which another process can be told."""
    return run(setup_of(scaling, seed, outages), load(), seed)


class Runs:
    """The runs of all seeds, in other processes."""

    def __init__(self, pool: ProcessPoolExecutor, seeds: Sequence[int]) -> None:
        self._pool = pool
        self._seeds = seeds

    def of(
        self, scaling: Scaling, load: Callable[[], Load], *outages: Outage
    ) -> list[Future[Result]]:
        """Have them done."""
        return [self._pool.submit(once, scaling, load, seed, outages) for seed in self._seeds]


def measure(seeds: Sequence[int], *, rivals: bool = True) -> list[Figure]:
    """All figures, in the order of the table; other metrics than our default for the step only
    unless `rivals`.
    """
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=spawning) as pool:
        runs = Runs(pool, seeds)
        followed = [
            (scaling, load(), runs.of(scaling, load))
            for load in (step, ramp, sine, hour, trace)
            for scaling in (DEFAULT, *(_RIVALS if rivals or load is step else ()))
        ]
        followed += [
            (scaling, step(), runs.of(scaling, step)) for scaling in (FAST, CONSERVATIVE, SLOW)
        ]
        followed.append((HURRIED, low_ramp(), runs.of(HURRIED, low_ramp)))
        followed.append((HEAVY, quiet(), runs.of(HEAVY, quiet)))
        if rivals:
            followed += [(scaling, trace(), runs.of(scaling, trace)) for scaling in (TEXT, LEARNT)]
        unheard = [
            (f"{name}, {scaling.name}", runs.of(scaling, quiet, outage))
            for name, outage in OUTAGES.items()
            for scaling in (DEFAULT, FAST)
        ]
        figures = []
        for scaling, load, results in followed:
            figures += _followed(scaling, load, [one.result() for one in results])
        for name, results in unheard:
            events = [one.result().events for one in results]
            figures.append(_worst(f"{name}: scale events", "", events, at_most, 0))
    return figures


def _followed(scaling: Scaling, load: Load, results: Sequence[Result]) -> list[Figure]:
    """What one load came to; goals are for the metric that we advise, as it comes."""
    name = f"{load.name}, {scaling.name}"
    cost = [result.cost for result in results]
    on_time = [result.on_time_share for result in results]
    promised = scaling in (DEFAULT, HURRIED)
    is_trace, is_step = load.name == "trace", load.name == "x4 step"
    costs = at_most if promised and load.name in ("ramp", "low ramp", "sine") else None
    times = at_least if promised and is_step else None
    turns = at_most if promised and not is_trace else None
    # A trace changes all the time: there reversals are counted and not divided.
    changes = 1 if is_trace else max(1, load.changes)
    reversals = [result.reversals / changes for result in results]
    what = "reversals" if is_trace else "reversals per load change"
    return [
        _worst(f"{name}: replica-seconds against ideal", "", cost, costs, MOST_COST),
        _worst(f"{name}: on time", "", on_time, times, LEAST_ON_TIME, least=True),
        _worst(f"{name}: {what}", "", reversals, turns, MOST_REVERSALS),
    ]


def _worst(
    name: str,
    unit: str,
    values: Iterable[float],
    goal: Callable[[str, float, str, float], Figure] | None,
    bound: float,
    *,
    least: bool = False,
) -> Figure:
    rounds = tuple(values)
    value = min(rounds) if least else max(rounds)
    figure = goal(name, value, unit, bound) if goal else Figure(name=name, value=value, unit=unit)
    return replace(figure, rounds=rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser("How well the number of pods follows the load.").parse_args(arguments)
    figures = measure(_QUICK, rivals=False) if options.quick else measure(_FULL)
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
