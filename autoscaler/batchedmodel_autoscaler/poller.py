"""Asks every pod's sidecar again and again and hands the answers to the fleet.

A shell without judgement: what an answer or a silence means is the fleet's business.
"""

import asyncio
import heapq
import logging
import math
import random
from collections.abc import Awaitable, Callable
from typing import Final

from batchedmodel_autoscaler.errors import SidecarSilent, SomebodyElse
from batchedmodel_autoscaler.fleet import MOST_POLLS_PER_SECOND, Fleet
from batchedmodel_autoscaler.metrics import PollResult, Telemetry
from batchedmodel_contract.sidecar_api import Whom
from batchedmodel_contract.stats import SidecarStats

logger: Final = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
_START_SECONDS: Final = 1.0 / MOST_POLLS_PER_SECOND
"""For each start. All that are due at once would keep an HPA waiting until the last is done."""
_SOON: Final = 0.001
"""Seconds. Timers fire early by less, and waiting for the rest would be a tight loop."""
_HANDFUL_SECONDS: Final = 0.01
"""How far beginnings go ahead of their pace, as one by one costs a third more; and how far they
stay behind it, for a loop that has overslept. After a rest both are begun together."""
MOST_IN_A_MOMENT: Final = 1 + math.ceil((2 * _HANDFUL_SECONDS - _SOON) / _START_SECONDS)
_JITTER: Final = 0.1
_SLOWEST: Final = 4
"""A silent pod is asked down to this many times more rarely: its time-outs take others' places."""


class Poller:
    """The schedule of all polls; used inside one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        ask: Callable[[str, Whom], Awaitable[SidecarStats]],
        *,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._ask = ask
        self._telemetry = telemetry
        self._clock = clock
        self._due: list[tuple[float, str]] = []
        self._silences: dict[str, int] = {}
        """Every pod that is asked, with how often in a row it has not answered."""
        self._unasked: set[str] = set()
        self._awaited: list[tuple[set[str], asyncio.Event]] = []
        """What each who waits in `all_asked` still waits for."""
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._changed = asyncio.Event()

    def follow(self, uid: str) -> None:
        """Ask a pod from now on, at once for the first time. Idempotent.

        It ends by itself when the fleet no longer knows the pod.
        """
        if uid not in self._silences:
            self._silences[uid] = 0
            self._unasked.add(uid)
            self._schedule(uid, self._clock())

    async def all_asked(self) -> None:
        """Wait until each pod that is followed by now has been asked, whatever it answered.

        Not those that come later: where pods come as fast as they are asked it would never end.
        """
        if not self._unasked:
            return
        awaited = set(self._unasked), asyncio.Event()
        self._awaited.append(awaited)
        try:
            await awaited[1].wait()
        finally:
            self._awaited.remove(awaited)

    async def run(self) -> None:
        """Ask for as long as the task lives."""
        async with asyncio.TaskGroup() as polls:
            start = self._clock()
            while True:
                uid = await self._next()
                address = self._fleet.address(uid)
                if address is None:
                    del self._silences[uid]
                    self._asked(uid)
                elif not address:
                    self._asked(uid)
                    self._schedule(uid, self._clock() + self._fleet.poll_seconds)
                else:
                    await self._places.acquire()
                    polls.create_task(self._poll(uid, address, self._fleet.whom(uid)))
                    now = self._clock()
                    start = max(start + _START_SECONDS, now - _HANDFUL_SECONDS)
                    if start >= now + _HANDFUL_SECONDS - _SOON:
                        await asyncio.sleep(start - now)

    async def _next(self) -> str:
        while True:
            self._changed.clear()
            pause = self._due[0][0] - self._clock() if self._due else None
            if pause is not None and pause <= _SOON:
                return heapq.heappop(self._due)[1]
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _poll(self, uid: str, address: str, whom: Whom) -> None:
        try:
            self._fleet.answered(uid, await self._ask(address, whom), self._clock())
        except SomebodyElse as error:
            if not self._silences[uid]:
                logger.warning("dropped: %s", error)
            self._silent(uid, PollResult.OTHER)
        except SidecarSilent as error:
            logger.debug("no stats: %s", error)
            self._silent(uid)
        except Exception:
            # Our bug, met by this pod only: the others must be heard all the same.
            if not self._silences[uid]:
                logger.exception("the answer of %s could not be used", address)
            self._silent(uid)
        else:
            self._silences[uid] = 0
            self._telemetry.polled(PollResult.ANSWERED)
        finally:
            self._places.release()
            self._asked(uid)
        slower = min(_SLOWEST, 2 ** max(0, self._silences[uid] - 1))
        pause = self._fleet.poll_seconds * slower * random.uniform(1 - _JITTER, 1 + _JITTER)
        self._schedule(uid, self._clock() + pause)

    def _silent(self, uid: str, result: PollResult = PollResult.SILENT) -> None:
        self._silences[uid] += 1
        self._telemetry.polled(result)

    def _asked(self, uid: str) -> None:
        self._unasked.discard(uid)
        for left, all_asked in self._awaited:
            left.discard(uid)
            if not left:
                all_asked.set()

    def _schedule(self, uid: str, at: float) -> None:
        heapq.heappush(self._due, (at, uid))
        self._changed.set()
