"""What two hundred busy models make operator and autoscaler read of the API server.

Called by `control_plane`. The load of all pods comes and goes with the looks of the HPAs, so that
each writes its status every time, and no number of pods ever changes. What anybody with a service
account reads is counted in the audit log of the API server, watches and Leases included. A control
plane of its own, since to write down reads costs the API server something.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_kube.names import NAME_LABEL
from bench_report import Figure, at_most, tell
from control_plane_api import until
from control_plane_world import (
    AUTOSCALER,
    AUTOSCALERS,
    MODELS,
    OPERATOR,
    PODS_EACH,
    World,
    holds,
    manifest_of,
    names_of,
    running_world,
    settings_of,
)
from control_plane_writes import Log, Write
from pretended_stats import steady_stats

_READS: Final = frozenset({"get", "list", "watch"})
_PLURAL: Final = AUTOSCALERS.rpartition("/")[2]
_PACE: Final = 100
"""Requests a second of each of Kubernetes' controllers. At their own 20 some HPAs would look late;
without a pace 600 pods that come at once keep small machines busy for minutes."""
_CALM: Final = 0.3
"""Share of a pod's time that is asked for while little is: two pods would do."""
_LOOK_SECONDS: Final = 2.0
_LIMIT_SECONDS: Final = 300.0
MOST_READS: Final = 20.0
"""A second, of the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyPlan:
    """How much of everything."""

    models: int
    hpa_seconds: int
    seconds: float
    """For which is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyFound:
    """What was counted in that time."""

    plan: BusyPlan
    reads: Counter[tuple[str, str]]
    """By who read, and what."""
    changes: int
    """Statuses that HPAs wrote."""


async def measure_busy(plan: BusyPlan) -> BusyFound:
    """All of it. Raises `SystemExit` where the operator lost its Lease meanwhile."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with running_world(
            Path(folder),
            names_of(plan.models),
            requests_per_second=_PACE,
            hpa_seconds=plan.hpa_seconds,
            audit_reads=True,
        ) as world:
            tell("a control plane for busy models")
            await world.create()
            with ExitStack() as stack:
                operator = stack.enter_context(world.operator("busy"))
                await _pods_run(world, plan)
                answers = _answers(plan.hpa_seconds)
                stack.enter_context(world.answering("busy_sidecars.py", *answers))
                stack.enter_context(world.autoscaler())
                found = await _count(world, plan)
                if not operator.leads():
                    raise SystemExit("the operator ended or leads no more: it has read nothing")
                return found


async def _pods_run(world: World, plan: BusyPlan) -> None:
    async def there() -> bool:
        settled = await world.settled() == plan.models
        return settled and await world.api.count("/api/v1/pods") == PODS_EACH * plan.models

    await _until("all pods are there", there)
    await world.run_pods()


async def _count(world: World, plan: BusyPlan) -> BusyFound:
    async def follow() -> bool:
        models = await world.api.items(MODELS)
        scaled = await world.api.items(AUTOSCALERS, NAME_LABEL)
        return all(holds(one, "Ready") for one in models) and all(
            holds(one, "ScalingActive") for one in scaled
        )

    await _until("all models are ready and all HPAs follow the metric", follow)
    tell("all HPAs follow the metric")
    # What was learnt first is written, and each HPA has looked at both loads.
    await asyncio.sleep(4 * plan.hpa_seconds)
    log = Log(world.plane.audit_log)
    log.news()
    await asyncio.sleep(plan.seconds)
    found = counted(log.news(), plan)
    for (user, what), times in found.reads.most_common(12):
        sys.stderr.write(f"{user.rpartition(':')[2]}: {what} {times / plan.seconds:.2f}/s\n")
    tell("busy models have been counted")
    return found


def counted(entries: Iterable[Write], plan: BusyPlan) -> BusyFound:
    """What the entries of the log come to."""
    reads: Counter[tuple[str, str]] = Counter()
    changes = 0
    for one in entries:
        if one.verb in _READS:
            reads[one.user, one.what] += 1
        elif (one.resource, one.subresource) == (_PLURAL, "status") and one.status < 300:
            changes += 1
    return BusyFound(plan=plan, reads=reads, changes=changes)


def busy_figures(found: BusyFound) -> list[Figure]:
    """The rows of the table."""
    models, seconds = found.plan.models, found.plan.seconds

    def rate(user: str) -> float:
        return sum(times for (who, _), times in found.reads.items() if who == user) / seconds

    what = f"API reads/s, {models} busy models"
    return [
        at_most(f"{what}: operator", rate(OPERATOR), "/s", MOST_READS),
        Figure(name=f"{what}: autoscaler", value=rate(AUTOSCALER), unit="/s"),
        Figure(
            name=f"{models} busy models: statuses that HPAs wrote",
            value=found.changes / seconds,
            unit="/s",
        ),
    ]


def _answers(hpa_seconds: int) -> tuple[str, str, str]:
    settings = settings_of(manifest_of(names_of(1)[0]))
    busy = steady_stats(settings)
    calm = replace(busy, offered_work=(_CALM,) * len(busy.offered_work))

    def loaded(stats: SidecarStats) -> tuple[str, str]:
        return "200 OK", json.dumps(stats.to_mapping())

    answers = {
        sidecar_api.SETTINGS: ("200 OK", json.dumps({"hash": settings, "startup": "ready"})),
        sidecar_api.STATS: loaded(busy),
    }
    calm_answers = {sidecar_api.STATS: loaded(calm)}
    return json.dumps(answers), json.dumps(calm_answers), str(hpa_seconds)


async def _until(what: str, come: Callable[[], Awaitable[bool]]) -> None:
    await until(what, come, limit_seconds=_LIMIT_SECONDS, look_seconds=_LOOK_SECONDS)
