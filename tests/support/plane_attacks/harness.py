"""Operator and autoscaler beside a real control plane, healthy models, and attacks beside those."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from batchedmodel_kube.names import PLURAL
from cluster import ControlPlane
from control_plane_api import METADATA, Api, administrator, each, until
from support import autoscaler_cluster, operator_process
from support.chart import chart_objects
from support.operator_process import OperatorProcess
from support.plane import apply, install_crd, sidecar_address
from support.plane_attacks.aim import MERGE, Aim, Attack, model, path_of
from support.plane_attacks.healthy import SPACE, Healthy, Seen
from support.plane_attacks.orders import Helper, helper
from support.plane_attacks.sidecars import Behaviour
from support.process_memory import forget_peak, peak_bytes

_CROWD: Final = "others"
_FIRST_OF_ATTACKERS: Final = 200
_SETTLED_SECONDS: Final = 120.0
_PREPARING_SECONDS: Final = 300.0
_REQUESTS_AT_ONCE: Final = 4
_POLICY: Final = "admission-policy-metadata.yaml"
_FINALIZED: Final = (PLURAL, "deployments", "services")


def p99(seconds: Sequence[float]) -> float:
    """Of what was measured; NaN of nothing."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(0.99 * len(ordered)) - 1)] if ordered else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Of:
    """What became of one process."""

    restarts: int
    peak_bytes: int
    longest_stop: float
    """Seconds that its event loop did not turn."""
    answers: int
    silent: int
    """Probes that nobody answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One bout."""

    healthy: Seen
    metric_age: float
    """The longest time between two questions to the same healthy sidecar, in seconds."""
    operator: Of
    autoscaler: Of
    told: Mapping[str, Counter[int]]
    """By attack: answers of the API server by status."""
    deaf: int
    """Times that the operator's watching failed as a whole."""

    def lines(self) -> str:
        """All figures, for a person."""
        seen = self.healthy
        times = {
            "applied": seen.applied,
            "reported": seen.reported,
            "mended": seen.mended,
            "scaled": seen.scaled,
            "metric read": seen.asked,
            "API server": seen.api,
        }
        words = [f"{name} {p99(one):.2f} s of {len(one)}" for name, one in times.items()]
        words += [f"metric's age {self.metric_age:.1f} s", f"no metric {len(seen.wrong)}"]
        for name, one in (("operator", self.operator), ("autoscaler", self.autoscaler)):
            stop, held = 1e3 * one.longest_stop, one.peak_bytes / 1e6
            words.append(f"{name}: {held:.0f} MB, longest stop {stop:.0f} ms of {one.answers}")
        attacks = (f"  {name}: {dict(told)}" for name, told in self.told.items())
        return "\n".join([", ".join(words), *attacks])


@dataclass
class Siege:
    """All that stands from one bout to the next."""

    api: Api
    sidecars: Helper
    stops: Helper
    healthy: Healthy
    operator: OperatorProcess
    autoscaler: Any
    addresses: Mapping[Behaviour, str]
    _bouts: int = 0
    _deaf: int = field(default=0)

    async def bout(
        self, attacks: Sequence[Attack], seconds: float | None, *, share: float = 1.0
    ) -> Report:
        """Let these attacks run together beside the healthy models' life.

        `seconds`: None is until all have ended by themselves. `share`: as of `Aim`.
        """
        self._bouts += 1
        over, places = asyncio.Event(), asyncio.Semaphore(_REQUESTS_AT_ONCE)
        spaces = [f"foe-{self._bouts}-{number}" for number, _ in enumerate(attacks)]
        aims = [
            Aim(
                api=self.api,
                space=space,
                addresses=self.addresses,
                healthy=lambda: self.healthy.addresses,
                until=over,
                places=places,
                share=share,
            )
            for space in spaces
        ]
        pids = {"operator": self.operator.pid, "autoscaler": self.autoscaler.pid}
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_attack(aim, attack))
                for aim, attack in zip(aims, attacks, strict=True)
            ]
            async with asyncio.timeout(_PREPARING_SECONDS):
                for aim in aims:
                    await aim.ready.wait()
            await self._begin(pids)
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, over.set)
            else:
                ended = asyncio.wait(running)
                group.create_task(ended).add_done_callback(lambda _: over.set())
            for aim in aims:
                aim.begin.set()
            await self.healthy.live(over)
        stops = await self.stops.order(None)
        age = await self.sidecars.order([])
        before, self._deaf = self._deaf, self.operator.log().count("watching failed")
        report = Report(
            healthy=self.healthy.seen,
            metric_age=age,
            operator=_of(self.operator.alive(), pids["operator"], stops["operator"]),
            autoscaler=_of(self.autoscaler.poll() is None, pids["autoscaler"], stops["autoscaler"]),
            told={attack.name: aim.told for aim, attack in zip(aims, attacks, strict=True)},
            deaf=self._deaf - before,
        )
        await self._clear(spaces)
        return report

    async def crowd(self, count: int) -> None:
        """So many more models of others, of which nobody wants a pod, once all are looked at."""
        await self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": _CROWD}})
        path = path_of(PLURAL, _CROWD)
        names = [f"other-{number}" for number in range(count)]
        await each(names, lambda name: self.api.call("POST", path, model(name, suspend=True)))

        async def looked_at() -> bool:
            return all(one.get("status") for one in await self.api.items(path))

        await until("all of them are looked at", looked_at, limit_seconds=_SETTLED_SECONDS)

    async def _begin(self, pids: Mapping[str, int]) -> None:
        """What is counted is counted from now on."""
        self.healthy.seen = Seen()
        for pid in pids.values():
            forget_peak(pid)
        await self.stops.order(None)
        await self.sidecars.order([])

    async def _clear(self, spaces: Sequence[str]) -> None:
        """Namespaces of attackers go, without anybody waiting for it."""
        for space in spaces:
            await _let_go(self.api, space)
            await self.api.send("DELETE", f"/api/v1/namespaces/{space}", None)


async def _attack(aim: Aim, attack: Attack) -> None:
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": aim.space}}
    await aim.ask("POST", "/api/v1/namespaces", head)
    # What the API server does not take of it, or is too slow for, is no matter of ours.
    try:
        with suppress(TimeoutError, aiohttp.ClientError, RuntimeError):
            await attack.run(aim)
    finally:
        aim.ready.set()


async def _let_go(api: Api, space: str) -> None:
    """Finalizers of attackers would keep their namespaces for ever."""
    change = json.dumps({"metadata": {"finalizers": None}}).encode()
    for plural in _FINALIZED:
        path = path_of(plural, space)
        status, text = await api.send("GET", path, None, accept=METADATA)
        for one in json.loads(text).get("items") or () if status == 200 else ():
            if one["metadata"].get("finalizers"):
                await api.send("PATCH", f"{path}/{one['metadata']['name']}", change, kind=MERGE)


def _of(alive: bool, pid: int, stops: tuple[float, int, int]) -> Of:
    return Of(
        restarts=int(not alive),
        peak_bytes=peak_bytes(pid) if alive else 0,
        longest_stop=stops[0],
        answers=stops[1],
        silent=stops[2],
    )


@asynccontextmanager
async def besieged(plane: ControlPlane, folder: Path) -> AsyncIterator[Siege]:
    """Both processes with the chart's rights, and the healthy models, once all of them are well."""
    for make in (install_crd, operator_process.grant_rights, autoscaler_cluster.install, _admit):
        await asyncio.to_thread(make, plane)
    # Or their HPAs would hear of a new kind of object only after half a minute.
    await asyncio.to_thread(plane.stop_program, "kube-controller-manager")
    await asyncio.to_thread(plane.start_program, "kube-controller-manager")
    prefix = sidecar_address(plane, 0).removesuffix(".0")
    own = [f"{prefix}.{number}" for number in range(10, _FIRST_OF_ATTACKERS)]
    addresses = {one: f"{prefix}.{_FIRST_OF_ATTACKERS + at}" for at, one in enumerate(Behaviour)}
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(administrator(plane, folder))
        sidecars = await stack.enter_async_context(helper("support.plane_attacks.sidecars", prefix))
        await sidecars.line()
        await sidecars.order(
            [{"address": address, "behaviour": one} for one, address in addresses.items()]
        )
        healthy = Healthy(api, sidecars, own)
        await healthy.create()
        node = asyncio.create_task(healthy.run_pods())
        stack.callback(node.cancel)
        operator = await asyncio.to_thread(
            stack.enter_context, operator_process.operator(plane, folder)
        )
        stack.push_async_callback(_remove, plane, api)
        autoscaler = await asyncio.to_thread(
            stack.enter_context,
            autoscaler_cluster.autoscaler(plane, folder, poll_seconds=2.0, log_level="info"),
        )
        stops = await stack.enter_async_context(
            helper("support.plane_attacks.stops", _probed(plane, operator, autoscaler.pid))
        )
        await until(
            "the healthy models are ready and scaled",
            healthy.settled,
            limit_seconds=_SETTLED_SECONDS,
        )
        yield Siege(
            api=api,
            sidecars=sidecars,
            stops=stops,
            healthy=healthy,
            operator=operator,
            autoscaler=autoscaler,
            addresses=addresses,
        )


def _probed(plane: ControlPlane, operator: OperatorProcess, autoscaler: int) -> str:
    home = f"http://{plane.host_address}:{autoscaler_cluster.PROBES}/livez"
    named = {
        "operator": (operator.pid, f"{operator.probe_url}/healthz"),
        "autoscaler": (autoscaler, home),
    }
    return json.dumps(named)


def _admit(plane: ControlPlane) -> None:
    """The chart's policy on what stands beside a manifest."""
    apply(plane, *chart_objects(plane, operator_process.HOME, _POLICY))


async def _remove(plane: ControlPlane, api: Api) -> None:
    """Those who come after find nothing of it; nobody answers for the metrics any more."""
    for name in autoscaler_cluster.API_SERVICES:
        await asyncio.to_thread(plane.kubectl, "delete", "apiservice", name, "--ignore-not-found")
    for one in chart_objects(plane, operator_process.HOME, _POLICY):
        names = one["kind"], one["metadata"]["name"]
        await asyncio.to_thread(plane.kubectl, "delete", *names, "--ignore-not-found")
    for space in (SPACE, _CROWD):
        await api.send("DELETE", f"/api/v1/namespaces/{space}", None)
