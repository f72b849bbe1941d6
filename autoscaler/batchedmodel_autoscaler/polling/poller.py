"""Asks every pod's sidecar again and again and hands the answers to the cluster's state.

What an answer or a silence means is decided there.
"""

import asyncio
import heapq
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from batchedmodel_autoscaler.cluster.objects import ModelKey
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.state.pace import MOST_POLLS_PER_SECOND, Places
from batchedmodel_autoscaler.telemetry import PollResult, Telemetry
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_kube.admin_client import NoAnswer, OtherPod, Whom
from batchedmodel_kube.errors import ENDINGS

logger: Final = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
FIRST_ROUND_SECONDS: Final = 10.0
"""The longest wait for the first answers of all pods."""
_LOOK_SECONDS: Final = 0.05
_START_SECONDS: Final = 1.0 / MOST_POLLS_PER_SECOND
"""Between two starts. An HPA would wait until all have ended that started at once."""
_SOON: Final = 0.001
"""Seconds. Timers fire early by less than this, and waiting for the rest would be a tight loop."""
_HANDFUL_SECONDS: Final = 0.01
"""How far starts may go ahead of their pace, since starting one by one costs a third more, and how
far they may fall behind it, for a loop that has overslept. After a rest both come together."""
_AT_ONE_GO: Final = 256
"""Pods that are due."""
_JITTER: Final = 0.1
_SLOWEST: Final = 4
"""How many times more rarely a silent pod is asked at most: its time-outs take others' places."""


class Poller:
    """The schedule of all polls; used inside one event loop."""

    def __init__(
        self,
        state: ClusterState,
        ask: Callable[[str, Whom], Awaitable[SidecarStats]],
        *,
        telemetry: Telemetry,
    ) -> None:
        self._state = state
        self._ask = ask
        self._telemetry = telemetry
        self._clock = asyncio.get_running_loop().time
        self._due: list[tuple[float, str]] = []
        self._silences: dict[str, int] = {}
        """Every pod that is asked, with how often in a row it has not answered."""
        self._unasked: set[str] = set()
        self._places = Places()
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._changed = asyncio.Event()

    def follow(self, uid: str) -> None:
        """Ask a pod from now on, at once for the first time. Idempotent.

        The asking ends by itself when the state no longer knows the pod.
        """
        if uid not in self._silences:
            self._silences[uid] = 0
            self._unasked.add(uid)
            self._schedule(uid, self._clock())

    async def all_asked(self) -> None:
        """Wait until each pod that is followed by now has been asked, whatever it answered.

        Pods that come later do not count: where they come as fast as they are asked the waiting
        would never end. It ends after `FIRST_ROUND_SECONDS`, as thousands of pods may be silent.
        """
        awaited, until = set(self._unasked), self._clock() + FIRST_ROUND_SECONDS
        while awaited := awaited & self._unasked:
            if self._clock() >= until:
                logger.warning("%d pods have not been asked yet", len(awaited))
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def run(self) -> None:
        """Ask for as long as the task lives."""
        async with asyncio.TaskGroup() as polls:
            start = self._clock()
            while True:
                # A place first: whose turn it is depends on the moment at which there is one.
                await self._free.acquire()
                model, uid, address = await self._next()
                polls.create_task(self._poll(uid, model, address))
                now = self._clock()
                start = max(start + _START_SECONDS, now - _HANDFUL_SECONDS)
                if start >= now + _HANDFUL_SECONDS - _SOON:
                    await asyncio.sleep(start - now)

    async def _next(self) -> tuple[ModelKey, str, str]:
        """The pod whose turn it is, as soon as one is due: its model, uid and address."""
        while True:
            pause = self._let_wait()
            while (taken := self._places.take()) is not None:
                model, uid = taken
                if address := self._state.address(uid):
                    return model, uid, address
                # It has gone while it waited.
                self._places.ended(model)
                self._schedule(uid, self._clock())
            self._changed.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _let_wait(self) -> float | None:
        """Queue the pods that are due for their turn; seconds until the next one is due.

        Not too many at one go, so that others have the loop in between.
        """
        for _ in range(_AT_ONE_GO):
            if not self._due:
                return None
            now = self._clock()
            if self._due[0][0] > now + _SOON:
                return self._due[0][0] - now
            _, uid = heapq.heappop(self._due)
            if address := self._state.address(uid):
                self._places.wait(self._state.model_of(uid), uid)
                continue
            self._unasked.discard(uid)
            if address is None:
                del self._silences[uid]
            else:
                self._schedule(uid, now + self._state.poll_seconds)
        return 0.0

    async def _poll(self, uid: str, model: ModelKey, address: str) -> None:
        try:
            answer = await self._ask(address, Whom(model=model.name, pod=uid))
            self._state.answered(uid, answer, self._clock())
        except OtherPod as error:
            if not self._silences[uid]:
                logger.warning("dropped: %s", error, extra=model.fields(pod_uid=uid))
            self._silent(uid, PollResult.OTHER)
        except NoAnswer as error:
            logger.debug("no stats of %s: %s", address, error, extra=model.fields(pod_uid=uid))
            self._silent(uid)
        except ENDINGS:
            raise
        except BaseException:
            # Our bug, met by this pod only: the others must be heard all the same.
            if not self._silences[uid]:
                fields = model.fields(pod_uid=uid)
                logger.exception("the answer of %s could not be used", address, extra=fields)
            self._silent(uid)
        else:
            self._silences[uid] = 0
            self._telemetry.polls.labels(PollResult.ANSWERED).inc()
        finally:
            self._places.ended(model)
            self._free.release()
            self._unasked.discard(uid)
        slower = min(_SLOWEST, 2 ** max(0, self._silences[uid] - 1))
        pause = self._state.poll_seconds * slower * random.uniform(1 - _JITTER, 1 + _JITTER)
        self._schedule(uid, self._clock() + pause)

    def _silent(self, uid: str, result: PollResult = PollResult.SILENT) -> None:
        self._silences[uid] += 1
        self._telemetry.polls.labels(result).inc()

    def _schedule(self, uid: str, at: float) -> None:
        heapq.heappush(self._due, (at, uid))
        self._changed.set()
