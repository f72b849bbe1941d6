"""What operator and autoscaler take for a thousand BatchedModels, on a real control plane.

etcd, API server and Kubernetes' controllers are real; nodes and sidecars are not: pods get the
status that a kubelet would report, and one process answers at all their addresses. Writes are
counted, and edits timed, in the API server's audit log. `--quick` has fewer models and shorter
phases, and says so. Kubernetes' controllers keep to their own pace, each 20 requests a second;
`--lifted` has them work as fast as they can, which takes processors from everybody else. `--busy`
only counts what 200 busy models make operator and autoscaler read, which is done first otherwise.

    python bench/control_plane.py [--quick] [--lifted] [--busy] [--json FILE]
"""

import asyncio
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from batchedmodel_kube.names import NAME_LABEL, PLURAL
from bench_report import Figure, at_most, new_parser, report, tell
from control_plane_api import until
from control_plane_busy import BusyPlan, busy_figures, measure_busy
from control_plane_world import (
    AUTOSCALER,
    AUTOSCALERS,
    EDITOR,
    HPA_SECONDS,
    LIFTED,
    MODELS,
    OPERATOR,
    PODS_EACH,
    OperatorProcess,
    Sidecars,
    Unavailable,
    World,
    holds,
    names_of,
    peak_bytes,
    running_world,
)
from control_plane_writes import Log, Write, counts, edits_applied
from even_pace import paced
from process_cpu import cpu_seconds
from same_arrivals import percentiles

CHILDREN: Final = {
    "/api/v1/configmaps": 1,
    "/api/v1/services": 1,
    "/apis/apps/v1/deployments": 1,
    "/apis/apps/v1/controllerrevisions": 1,
    AUTOSCALERS: 1,
    "/apis/policy/v1/poddisruptionbudgets": 1,
}
"""Collections of children, and how many a model has in each."""
_KILLED: Final = -9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything."""

    models: int
    hpa_seconds: int
    steady_seconds: float
    edits: int
    edits_per_second: float
    reads: int
    reads_per_second: float
    polling_seconds: float
    """For which sidecars are watched being asked."""
    look_seconds: float
    """Between two looks whether something has come true: they cost the API server something too."""
    quiet_seconds: float
    """Without a write of ours after which nothing more is expected."""
    limit_seconds: float
    """For what does not come."""
    busy: BusyPlan


FULL: Final = Plan(
    models=1000,
    hpa_seconds=HPA_SECONDS,
    steady_seconds=300.0,
    edits=150,
    edits_per_second=3.0,
    reads=3000,
    reads_per_second=100.0,
    polling_seconds=30.0,
    look_seconds=2.0,
    quiet_seconds=5.0,
    limit_seconds=900.0,
    busy=BusyPlan(models=200, hpa_seconds=HPA_SECONDS, seconds=90.0),
)
QUICK: Final = Plan(
    models=15,
    hpa_seconds=5,
    steady_seconds=5.0,
    edits=10,
    edits_per_second=4.0,
    reads=200,
    reads_per_second=100.0,
    polling_seconds=5.0,
    look_seconds=0.5,
    quiet_seconds=1.5,
    limit_seconds=180.0,
    busy=BusyPlan(models=15, hpa_seconds=5, seconds=10.0),
)


@dataclass(slots=True, kw_only=True)
class Found:
    """What was measured; seconds and bytes."""

    cold: float = math.nan
    cold_cpu: float = math.nan
    running: float = math.nan
    reads: list[float] = field(default_factory=list)
    """While HPAs hear of the metric for the first time and Kubernetes still digests the pods."""
    steady_reads: list[float] = field(default_factory=list)
    """In the steady state."""
    gap: float = math.nan
    asked: int = 0
    steady_writes: int = 0
    steady_cpu: tuple[float, float] = (math.nan, math.nan)
    """Share of a core, of operator and autoscaler."""
    edits: list[float] = field(default_factory=list)
    operator_bytes: int = 0
    successor_bytes: int = 0
    """Of the operator that met all models and pods at once, where the first saw them come."""
    autoscaler_bytes: int = 0
    leads_after: float = math.nan
    works_after: float = math.nan
    loads: list[float] = field(default_factory=list)


async def measure(plan: Plan, requests_per_second: int | None) -> list[Figure]:
    """All figures, one phase after the other in one control plane.

    `requests_per_second`: as of `running_world`.
    """
    found = Found()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with running_world(
            Path(folder),
            names_of(plan.models),
            requests_per_second=requests_per_second,
            hpa_seconds=plan.hpa_seconds,
        ) as world:
            tell("a control plane")
            log = Log(world.plane.audit_log)
            await world.create()
            with ExitStack() as stack:
                operator = stack.enter_context(world.operator("first", (0, _KILLED)))
                await _cold(found, world, operator, plan)
                sidecars = stack.enter_context(world.sidecars())
                autoscaler = stack.enter_context(world.autoscaler())
                await _running(found, world, log, plan)
                found.reads = await _reads(found, world, plan)
                second = stack.enter_context(world.operator("second"))
                # Both only look on, and meanwhile the second operator starts.
                await asyncio.gather(
                    _polls(found, sidecars, plan),
                    _steady(found, world, log, (operator.pid, autoscaler.pid), plan),
                )
                found.steady_reads = await _reads(found, world, plan)
                await _edits(found, world, sidecars, log, plan)
                found.operator_bytes = peak_bytes(operator.pid)
                found.autoscaler_bytes = peak_bytes(autoscaler.pid)
                await _fail_over(found, world, sidecars, log, (operator, second), plan)
    return figures_of(found, plan)


async def _cold(found: Found, world: World, operator: OperatorProcess, plan: Plan) -> None:
    began = time.monotonic()

    async def done() -> bool:
        # A model is reconciled before its HPA is there, which waits for the Deployment.
        return await world.settled() == plan.models and await _there(world, CHILDREN, plan)

    async def complete() -> bool:
        return await _there(world, {"/api/v1/pods": PODS_EACH}, plan)

    await _until("all models are reconciled and all children there", done, plan)
    found.cold = time.monotonic() - began
    found.cold_cpu = cpu_seconds(operator.pid)
    _ended(found, f"cold: {found.cold:.1f} s, {found.cold_cpu:.1f} s of CPU")
    # These are made by others, and may come later.
    await _until("all pods are there", complete, plan)


async def _there(world: World, kinds: Mapping[str, int], plan: Plan) -> bool:
    for path, number in kinds.items():
        if await world.api.count(path) != number * plan.models:
            return False
    return True


async def _running(found: Found, world: World, log: Log, plan: Plan) -> None:
    """Nodes run all pods; it ends when the operator has nothing more to say about that."""
    began = time.monotonic()
    await world.run_pods()

    async def serving() -> bool:
        models = await world.api.items(MODELS)
        return all(holds(model, "Ready") for model in models)

    await _until("all models are ready", serving, plan)
    found.running = time.monotonic() - began
    tell(f"all ready: {found.running:.1f} s")
    await _quiet(log, plan)
    tell("nothing more is written")


async def _reads(found: Found, world: World, plan: Plan) -> list[float]:
    """Seconds of each; as an HPA asks, through the API server, while all HPAs ask too."""
    await _until("the metric is served", world.has_metrics, plan)
    chosen = random.Random(1).choices(world.names, k=plan.reads)
    asks = (partial(world.api.call, "GET", name.metric_path) for name in chosen)
    seconds = await paced(asks, plan.reads_per_second)
    _ended(found, f"metric: p99 {1e3 * _p99(seconds):.1f} ms")
    return seconds


async def _polls(found: Found, sidecars: Sidecars, plan: Plan) -> None:
    sidecars.longest_gap()
    await asyncio.sleep(plan.polling_seconds)
    found.gap, found.asked = sidecars.longest_gap()
    _ended(found, f"age: {found.gap:.1f} s of {found.asked} pods")


async def _steady(found: Found, world: World, log: Log, pids: tuple[int, int], plan: Plan) -> None:
    async def scaling() -> bool:
        autoscalers = await world.api.items(AUTOSCALERS, NAME_LABEL)
        return all(holds(one, "ScalingActive") for one in autoscalers)

    # What each has found first is written.
    await _until("all HPAs have a metric", scaling, plan)
    await _quiet(log, plan)
    before = [cpu_seconds(pid) for pid in pids]
    await asyncio.sleep(plan.steady_seconds)
    operator, autoscaler = (
        (cpu_seconds(pid) - spent) / plan.steady_seconds
        for pid, spent in zip(pids, before, strict=True)
    )
    found.steady_cpu = operator, autoscaler
    written = counts(log.news(), (OPERATOR, AUTOSCALER))
    for what, times in written.most_common():
        sys.stderr.write(f"written in the steady state: {what} {times}\n")
    found.steady_writes = written.total()
    _ended(found, f"steady: {found.steady_writes} writes")


async def _edits(found: Found, world: World, sidecars: Sidecars, log: Log, plan: Plan) -> None:
    for number, name in enumerate(random.Random(2).sample(world.names[:-1], k=plan.edits), 1):
        await world.edit(name, number, sidecars)
        await asyncio.sleep(1 / plan.edits_per_second)
    found.edits = _applied(await _quiet(log, plan))
    _ended(found, f"edits: p99 {_p99(found.edits):.2f} s")


async def _fail_over(
    found: Found,
    world: World,
    sidecars: Sidecars,
    log: Log,
    operators: tuple[OperatorProcess, OperatorProcess],
    plan: Plan,
) -> None:
    """`operators`: the one that leads, and the one that waits."""
    first, second = operators

    async def waits() -> bool:
        return second.leads() is False

    await _until("the second operator waits", waits, plan)
    began = time.monotonic()
    first.kill()
    # One that was not among those edited before.
    await world.edit(world.names[-1], plan.edits + 1, sidecars)

    async def leads() -> bool:
        return second.leads() is True

    await _until("the second operator leads", leads, plan)
    found.leads_after = time.monotonic() - began
    writes: list[Write] = []

    async def applied() -> bool:
        writes.extend(log.news())
        seconds = _applied(writes)
        return bool(seconds) and math.isfinite(seconds[0])

    await _until("what was edited meanwhile is applied", applied, plan)
    [found.works_after] = _applied(writes)
    await _quiet(log, plan)
    found.successor_bytes = peak_bytes(second.pid)
    _ended(found, f"fail-over: {found.leads_after:.1f} s")


def _ended(found: Found, phase: str) -> None:
    tell(phase)
    found.loads.append(os.getloadavg()[0])


def _applied(writes: Sequence[Write]) -> list[float]:
    return list(edits_applied(writes, editor=EDITOR, operator=OPERATOR, resource=PLURAL))


async def _quiet(log: Log, plan: Plan) -> list[Write]:
    """Until nobody of ours has written for a while; all that was written since the last look."""
    began, writes = time.monotonic(), log.news()
    while True:
        await asyncio.sleep(plan.quiet_seconds)
        news = log.news()
        writes += news
        written = counts(news, (OPERATOR, AUTOSCALER))
        if not written:
            return writes
        if time.monotonic() - began > plan.limit_seconds:
            sys.stderr.write(f"something goes on writing: {written}\n")
            return writes


async def _until(what: str, holds: Callable[[], Awaitable[bool]], plan: Plan) -> None:
    await until(what, holds, limit_seconds=plan.limit_seconds, look_seconds=plan.look_seconds)


def figures_of(found: Found, plan: Plan) -> list[Figure]:
    """The table."""
    count, pods = f"{plan.models:,}", f"{plan.models:,} models x {PODS_EACH} pods"
    seconds = plan.steady_seconds
    steady = f"{seconds / 60:g} minutes" if plan is FULL else f"{seconds:g} s"
    edits, (operator, autoscaler) = _p99(found.edits), found.steady_cpu
    taken = found.successor_bytes / 1e6
    return [
        at_most(f"{count} BatchedModels from cold: all applied", found.cold, "s", 90.0),
        Figure(name="from cold: CPU of the operator", value=found.cold_cpu, unit="s"),
        Figure(name="all pods run: all models ready after", value=found.running, unit="s"),
        at_most(f"steady state, {steady}: writes", float(found.steady_writes), "", 0.0),
        Figure(name="steady state: CPU of the operator", value=100 * operator, unit="%"),
        Figure(name="steady state: CPU of the autoscaler", value=100 * autoscaler, unit="%"),
        at_most(f"{len(found.edits)} edits beside {count} models: applied, p99", edits, "s", 2.0),
        Figure(name="edits: applied, median", value=_percentile(found.edits, 50), unit="s"),
        at_most(f"operator at {count} models: memory", found.operator_bytes / 1e6, "MB", 250.0),
        at_most(f"operator that takes over {count} models: memory", taken, "MB", 250.0),
        at_most(f"autoscaler at {pods}: memory", found.autoscaler_bytes / 1e6, "MB", 250.0),
        *_read_figures(f"metric at {pods}", found.steady_reads),
        *_read_figures("metric, right after all pods have started", found.reads),
        at_most(f"metric of {found.asked:,} pods: age at worst", found.gap, "s", 10.0),
        Figure(name="leader killed: another leads after", value=found.leads_after, unit="s"),
        at_most("leader killed: edit applied after", found.works_after, "s", 20.0),
        Figure(name="load average at most", value=max(found.loads), unit=""),
    ]


def _read_figures(what: str, seconds: Sequence[float]) -> list[Figure]:
    return [
        at_most(f"{what}: GET, p99", 1e3 * _p99(seconds), "ms", 50.0),
        Figure(name=f"{what}: GET, median", value=1e3 * _percentile(seconds, 50), unit="ms"),
    ]


def _p99(values: Sequence[float]) -> float:
    return _percentile(values, 99)


def _percentile(values: Sequence[float], which: float) -> float:
    return percentiles(np.array(values), which)[0] if values else math.nan


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    parser = new_parser("Operator and autoscaler with a thousand models.")
    parser.add_argument("--lifted", action="store_true", help="Kubernetes' controllers are unpaced")
    parser.add_argument("--busy", action="store_true", help="only what busy models cost in reads")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    try:
        figures = busy_figures(asyncio.run(measure_busy(plan.busy)))
        if not options.busy:
            figures = asyncio.run(measure(plan, LIFTED if options.lifted else None)) + figures
    except Unavailable as reason:
        # Like the tests that need it: this machine cannot, which is no fault of the project.
        print(f"no control plane here: {reason}")
        return 0
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
