"""One process that is all pods of a few models, which serve a load in real time.

Started by `scaling_trace`. The pods are those of the simulated loop, so
that whatever differs from what it foretells comes of the chain around them. Every model gets the
same load, in full pods' capacities for each second; its first pods have been serving for a while.

    python replayed_pods.py '{"device": {...}, "amounts": [4.0, ...],
        "pods": {"model": ["198.18.192.1", ...]}, "answers": {"/path": ["200 OK", "body"]}}'

Each line of standard input is an order, as JSON: `{"begin": true}` once, before which no time goes
by; `{"born": [["model", "198.18.192.9", 30.0]], "leaving": ["198.18.192.1"]}` of pods that will be
ready in so many seconds, and of pods that take no more. It is answered with the pods that have
`ended` since the order before, and what each model has `served`: rows offered, and on time.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from autoscaling_loop.loop import TICK_SECONDS, WARM_UP_TICKS
from autoscaling_loop.pods import Device, Replicas, SimulatedPod
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.stats import SidecarStats
from many_sidecars import NOT_FOUND, answer_for_all, written

_SEED: Final = 1


class Replay:
    """The pods, named by their addresses. Times are seconds since the load's beginning."""

    def __init__(
        self, device: Device, amounts: Sequence[float], pods: Mapping[str, Sequence[str]]
    ) -> None:
        self._amounts = amounts
        self._models = {model: Replicas(device) for model in pods}
        self._pods: dict[str, SimulatedPod] = {}
        self._ended: list[str] = []
        self._tick = -WARM_UP_TICKS
        for model, addresses in pods.items():
            for address in addresses:
                self.born(model, address, 0.0)
        self.advance(0.0)

    @property
    def now(self) -> float:
        """Up to when all have served."""
        return self._tick * TICK_SECONDS

    def advance(self, until: float) -> None:
        """Serve to the last whole tick."""
        while self.now + TICK_SECONDS <= until:
            start, end = self.now, self.now + TICK_SECONDS
            for replicas in self._models.values():
                replicas.serve(start, end, self._amount())
                for pod in replicas.bury(end):
                    self._ended.append(pod.name)
                    del self._pods[pod.name]
            self._tick += 1

    def _amount(self) -> float:
        tick = max(0, self._tick)
        return self._amounts[tick] if tick < len(self._amounts) else 0.0

    def born(self, model: str, address: str, startup_seconds: float) -> None:
        """A pod more."""
        random, ready = stream(_SEED, address), self.now + startup_seconds
        self._pods[address] = self._models[model].add(address, random, born=self.now, ready=ready)

    def leaving(self, address: str) -> None:
        """It takes no more."""
        pod = self._pods.get(address)
        if pod is not None and pod.leaving_since is None:
            pod.leaving_since = self.now

    def ended(self) -> list[str]:
        """Those that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def served(self) -> dict[str, tuple[int, int]]:
        """Rows offered to each model, and those that were answered in time."""
        tallies = {model: replicas.tally for model, replicas in self._models.items()}
        return {model: (tally.offered, tally.on_time) for model, tally in tallies.items()}

    def stats(self, address: str) -> SidecarStats | None:
        """What a pod's sidecar tells; None of one that is none."""
        pod = self._pods.get(address)
        return None if pod is None else pod.stats(self.now)


async def _serve(asked: Mapping[str, Any]) -> None:
    clock = asyncio.get_running_loop().time
    replay = Replay(Device(**asked["device"]), asked["amounts"], asked["pods"])
    answers = {path.encode(): written(*answer) for path, answer in asked["answers"].items()}
    began: float | None = None

    def catch_up() -> None:
        if began is not None:
            replay.advance(clock() - began)

    def answer(address: str, path: bytes) -> bytes:
        if path != sidecar_api.STATS.encode():
            return answers.get(path, NOT_FOUND)
        catch_up()
        stats = replay.stats(address)
        return NOT_FOUND if stats is None else written("200 OK", json.dumps(stats.to_mapping()))

    def obey(order: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal began
        if order.get("begin"):
            began = clock()
        catch_up()
        for model, address, startup_seconds in order.get("born", ()):
            replay.born(model, address, startup_seconds)
        for address in order.get("leaving", ()):
            replay.leaving(address)
        return {"ended": replay.ended(), "served": replay.served()}

    await answer_for_all(answer, obey)


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
