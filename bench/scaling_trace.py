"""A recorded load through the real chain: what it costs and how it swings, beside a simulation.

etcd, API server, Kubernetes' controllers with their HPA, operator and autoscaler are real and keep
their own time. The pods are the simulator's, served at addresses of their own by one process: the
prediction is of the same pods under the same load, and the difference is the chain's. Some models
are scaled on `Load`, others on the length of the queue, several in each way. `--quick` replays the
seconds around one jump, and says so.

    python bench/scaling_trace.py [--quick] [--json FILE]
"""

import asyncio
import functools
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import autoscaling
from autoscaling import DEFAULT, QUEUE, STOCK_QUEUE, Runs, Scaling, setup_of, spec_of
from autoscaling_loop import loop as simulated_loop
from autoscaling_loop.hpa import read_autoscaler
from autoscaling_loop.loop import TICK_SECONDS, Load, Result, ideal_replicas
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_kube.capacity import capacity_of
from batchedmodel_kube.names import GROUP, NAME_LABEL, VERSION
from bench_report import Figure, at_most, median_of, new_parser, of_rounds, report, tell
from control_plane_api import each, until
from control_plane_world import (
    AUTOSCALERS,
    MODELS,
    Name,
    Sidecars,
    Unavailable,
    World,
    running_world,
    settings_of,
)
from pretended_node import Node, joined

WAYS: Final = (DEFAULT, QUEUE, STOCK_QUEUE)
FARTHEST_PERCENT: Final = 10.0
_NAMESPACE: Final = "replay"
_DEPLOYMENTS: Final = "/apis/apps/v1/deployments"
_PROCESSES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything."""

    name: str
    start: float
    seconds: float
    """Of the trace."""
    copies: int
    """Models for each way to scale."""
    runs: int
    """Simulations of each."""


# The trace begins with the steepest rise that it has: more than fourfold within a minute.
FULL: Final = Plan(name="16 minutes", start=0.0, seconds=960.0, copies=3, runs=9)
# Its half of it comes after five seconds: every HPA looks once more, and late enough to see it.
QUICK: Final = Plan(name="25 seconds", start=35.0, seconds=25.0, copies=1, runs=3)


def load_of(plan: Plan) -> Load:
    """The part of the trace, in full pods' capacities; four of them is the whole trace's mean."""
    return simulated_loop.part(autoscaling.trace(), start=plan.start, seconds=plan.seconds)


def names_of(plan: Plan) -> dict[str, Scaling]:
    """Models, and how each is scaled."""
    return {f"{_slug(way)}-{copy}": way for way in WAYS for copy in range(plan.copies)}


def _slug(way: Scaling) -> str:
    return re.sub(r"[^a-z]+", "-", way.name.lower())


def manifest_of(name: str, way: Scaling) -> dict[str, Any]:
    """Of a model that is scaled in a way."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "BatchedModel",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": spec_of(way),
    }


def foretold(plan: Plan) -> dict[str, list[Result]]:
    """What the simulator makes of it, by way; its HPA looks at other moments in each run."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=spawning) as pool:
        runs = Runs(pool, range(plan.runs))
        load = functools.partial(load_of, plan)
        futures = {way.name: runs.of(way, load) for way in WAYS}
        return {name: [one.result() for one in found] for name, found in futures.items()}


async def replayed(
    plan: Plan, simulated: Awaitable[object]
) -> tuple[dict[str, list[Result]], list[float]]:
    """What the chain makes of it, by way; and the machine's load averages meanwhile.

    `simulated`: what else the machine is busy with, after which time begins.
    """
    ways = names_of(plan)
    names = [Name(namespace=_NAMESPACE, name=name) for name in ways]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with running_world(Path(folder), names) as world, joined(world.api):
            tell("a control plane with a node")
            with ExitStack() as stack:
                stack.enter_context(world.operator("operator"))
                node = Node(world, startup_seconds=DEFAULT.startup_seconds)
                sizes = await _first_pods(world, ways, plan)
                arguments = _arguments(await node.take_up_first(), ways, plan)
                sidecars = stack.enter_context(world.answering("replayed_pods.py", arguments))
                await node.look(sidecars, 0.0)
                await simulated
                tell("simulated; the first pods serve")
                stack.enter_context(world.autoscaler())
                await until("the HPAs have what they need", lambda: _is_fed(world, ways))
                tell(f"replaying {plan.name} with {len(ways)} models")
                results, averages = await _replay(world, node, sidecars, sizes, plan)
                tell("replayed")
    by_way: dict[str, list[Result]] = {way.name: [] for way in WAYS}
    for name, result in results.items():
        by_way[ways[name].name].append(result)
    return by_way, averages


async def _first_pods(world: World, ways: Mapping[str, Scaling], plan: Plan) -> dict[str, int]:
    """Models of the size that the load's beginning needs; nothing feeds their HPAs as yet."""
    load = load_of(plan)
    sizes = {
        name: ideal_replicas(setup_of(way, seed=0), load.at(0.0)) for name, way in ways.items()
    }
    await world.create(lambda name: manifest_of(name.name, ways[name.name]))

    async def scaled() -> bool:
        return await world.api.count(AUTOSCALERS) == len(ways)

    await until("all models have an HPA", scaled)
    await each(
        sizes.items(),
        lambda of: world.api.patch(
            f"/apis/apps/v1/namespaces/{_NAMESPACE}/deployments/{of[0]}/scale",
            {"spec": {"replicas": of[1]}},
        ),
    )

    async def there() -> bool:
        return await world.api.count("/api/v1/pods") == sum(sizes.values())

    await until("the first pods are there", there)
    return sizes


def _arguments(pods: Mapping[str, Sequence[str]], ways: Mapping[str, Scaling], plan: Plan) -> str:
    """What the pods' process is told: all models have the same batching."""
    load = load_of(plan)
    ticks = range(round(load.seconds / TICK_SECONDS))
    settings = settings_of(manifest_of("any", DEFAULT))
    state = json.dumps({"hash": settings, "startup": "ready"})
    return json.dumps(
        {
            "device": asdict(DEFAULT.device),
            "amounts": [load.at(tick * TICK_SECONDS) for tick in ticks],
            "pods": {name: pods[name] for name in ways},
            "answers": {
                sidecar_api.SETTINGS: ("200 OK", state),
            },
        }
    )


async def _is_fed(world: World, ways: Mapping[str, Scaling]) -> bool:
    """Start-up times are learnt, HPAs are as the simulator has them, and their metric answers."""
    for model in await world.api.items(MODELS):
        known = capacity_of(model.get("status") or {})
        if known is None or known.startup_seconds is None:
            return False
    for found in await world.api.items(AUTOSCALERS, NAME_LABEL):
        way = ways[found["metadata"]["labels"][NAME_LABEL]]
        if read_autoscaler(found["spec"]) != setup_of(way, seed=0).autoscaler:
            return False
    try:
        for name in world.names:
            await world.api.call("GET", name.metric_path)
    except RuntimeError:
        return False
    return True


async def _replay(
    world: World, node: Node, sidecars: Sidecars, sizes: Mapping[str, int], plan: Plan
) -> tuple[dict[str, Result], list[float]]:
    load = load_of(plan)
    results = {name: Result(sizes=[(0.0, size)]) for name, size in sizes.items()}
    averages = [os.getloadavg()[0]]
    sidecars.order({"begin": True})
    began, before = time.monotonic(), 0.0
    while before < load.seconds:
        await asyncio.sleep(TICK_SECONDS - (time.monotonic() - began) % TICK_SECONDS)
        now = min(load.seconds, time.monotonic() - began)
        pods = await node.look(sidecars, now)
        for deployment in await world.api.items(_DEPLOYMENTS, NAME_LABEL):
            name, size = deployment["metadata"]["name"], deployment["spec"]["replicas"]
            results[name].replica_seconds += pods[name] * (now - before)
            if size != results[name].sizes[-1][1]:
                results[name].sizes.append((now, size))
        if now // 60 > before // 60:
            averages.append(os.getloadavg()[0])
            tell(f"{now:.0f} s: {' '.join(f'{name} {pods[name]}' for name in results)}")
        before = now
    served = sidecars.order({})["served"]
    for name, result in results.items():
        result.offered, result.on_time = served[name]
        result.ideal_seconds = ideal_seconds(load)
    return results, averages


def ideal_seconds(load: Load) -> float:
    """The fewest replica-seconds that cover a load, which are the same for all ways to scale."""
    setup = setup_of(DEFAULT, seed=0)
    ticks = range(round(load.seconds / TICK_SECONDS))
    return sum(ideal_replicas(setup, load.at(tick * TICK_SECONDS)) for tick in ticks) * TICK_SECONDS


def figures_of(
    real: Mapping[str, Sequence[Result]],
    simulated: Mapping[str, Sequence[Result]],
    averages: Sequence[float],
    plan: Plan,
) -> list[Figure]:
    """The table: a value is the median of a way's models or simulations."""
    figures: list[Figure] = []
    by_queue = median_of(result.reversals for result in real[QUEUE.name])
    for way in WAYS:
        name = f"{plan.name}, {way.name}"
        ours, theirs = real[way.name], simulated[way.name]
        spent = median_of(result.replica_seconds for result in ours)
        expected = median_of(result.replica_seconds for result in theirs)
        off, far = f"{name}: replica-seconds, off the simulated", 100 * abs(spent / expected - 1)
        figures += [
            *_both(f"{name}: replica-seconds", ours, theirs, lambda one: one.replica_seconds),
            # Of one jump, most of it is when the HPAs happened to look.
            at_most(off, far, "%", FARTHEST_PERCENT)
            if plan is FULL
            else Figure(name=off, value=far, unit="%"),
            *_both(f"{name}: replica-seconds against ideal", ours, theirs, lambda one: one.cost),
            *_both(f"{name}: on time", ours, theirs, lambda one: one.on_time_share),
            *_both(
                f"{name}: reversals",
                ours,
                theirs,
                lambda one: float(one.reversals),
                most=by_queue if way is DEFAULT else None,
            ),
        ]
    figures.append(Figure(name="load average at most", value=max(averages), unit=""))
    return figures


def _both(
    name: str,
    real: Sequence[Result],
    simulated: Sequence[Result],
    value: Callable[[Result], float],
    *,
    most: float | None = None,
) -> list[Figure]:
    def plain(name: str) -> Callable[[float], Figure]:
        return lambda value: Figure(name=name, value=value, unit="")

    ours = plain(name) if most is None else lambda value: at_most(name, value, "", most)
    return [
        of_rounds(ours, map(value, real)),
        of_rounds(plain(f"{name}, simulated"), map(value, simulated)),
    ]


async def measure(plan: Plan) -> list[Figure]:
    """All figures. It is simulated while the control plane starts."""
    tell(f"simulating {plan.name}")
    simulating = asyncio.create_task(asyncio.to_thread(foretold, plan))
    real, averages = await replayed(plan, simulating)
    return figures_of(real, await simulating, averages, plan)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser("A recorded load through the real chain.").parse_args(arguments)
    try:
        figures = asyncio.run(measure(QUICK if options.quick else FULL))
    except Unavailable as reason:
        # Like the tests that need it: this machine cannot, which is no fault of the project.
        print(f"no control plane here: {reason}")
        return 0
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
