"""Faults of all kinds, at random, in a running chain in front of which there is a crowd.

Each fault has an end, and from there on it is measured how long the chain is not well.
"""

import asyncio
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from support.chain import Chain
from support.crowd import Crowd
from support.process_memory import resident_bytes
from support.recovery import Lateness, Recovery, lateness, recovery

_CALM_SECONDS: Final = (0.5, 1.0)
"""For so long all must be well behind a fault before the next one begins."""
_OVERLOAD: Final = {"list": 1.0}
"""More than ten times the rows of usual callers, who would cost the machine ten times as much."""
_OVERLOAD_SECONDS: Final = (1.0, 2.0)
_STOP_SECONDS: Final = (0.1, 0.8)
_AWAY_SECONDS: Final = (0.0, 3.0)
_RESETS: Final = 100


@dataclass
class Chaos:
    """One storm over one chain."""

    chain: Chain
    crowd: Crowd
    settings: BatchSettings
    full: bool = False
    """Whether the queue is full all the time, so that to be told so is well."""
    recoveries: list[Recovery] = field(default_factory=list)
    calms: list[tuple[float, float]] = field(default_factory=list)
    """From when to when all was well between two faults, in monotonic seconds."""
    resident: list[int] = field(default_factory=list)
    """Bytes of memory that each sidecar had when it was killed."""
    lateness: Lateness = field(default_factory=Lateness)
    """Of this process, while it raged."""
    _rages: bool = True

    async def rage(self, seconds: float, rate: float) -> None:
        """Callers at `rate` a second, and one fault after the other, each kind at least once."""
        crowd = asyncio.create_task(self.crowd.come(lambda: self._rages, rate))
        try:
            async with lateness() as self.lateness:
                await self._faults(time.monotonic() + seconds)
        finally:
            self._rages = False
            await crowd

    def told(self) -> Iterator[str]:
        """A line for each kind of fault."""
        for kind in dict.fromkeys(one.fault for one in self.recoveries):
            of_kind = [one for one in self.recoveries if one.fault == kind]
            median = statistics.median(one.took for one in of_kind)
            worst = max(of_kind, key=lambda one: one.took)
            yield (
                f"{kind}: {len(of_kind)} times, well again in {median:.3f} s (median), "
                f"{worst.took:.3f} s (longest, in which this process was late by {worst.lag:.3f} s)"
            )

    def told_in_calm(self) -> Counter[str]:
        """What singles were told who came and left between two faults."""
        return Counter(
            visit.told
            for visit in self.crowd.diary.singles
            if any(begin <= visit.came and visit.left <= end for begin, end in self.calms)
        )

    async def _faults(self, until: float) -> None:
        kinds = [
            self._kill_model,
            self._kill_sidecar,
            self._stop_model,
            self._stop_sidecar,
            self._edit,
            self._reset,
        ]
        kinds += [] if self.full else [self._overload]
        first = iter(kinds)
        while (kind := next(first, None)) or time.monotonic() < until:
            kind = kind or self.crowd.random.choice(kinds)
            await kind()
            name = kind.__name__.removeprefix("_")
            calm = self.crowd.random.uniform(*_CALM_SECONDS)
            recovered = await recovery(name, self._is_well, calm)
            self.recoveries.append(recovered)
            self.calms.append((recovered.ended + recovered.took, time.monotonic()))
        self.chain.configure(self.settings)

    async def _is_well(self) -> bool:
        return await self.crowd.is_served(full=self.full)

    async def _kill_model(self) -> None:
        """It ends when the next model server says that it is ready."""
        model = self.chain.model
        seen = len(model.lines)
        model.send(signal.SIGKILL)
        await model.ended()
        await asyncio.sleep(self.crowd.random.uniform(*_AWAY_SECONDS))
        await model.start()
        await model.wait_for(r"\bREADY: ", after=seen)

    async def _kill_sidecar(self) -> None:
        """It ends when the next one listens, at other ports, so that nobody else takes them."""
        chain, crowd = self.chain, self.crowd
        seen = len(chain.sidecar.lines)
        self.resident.append(resident_bytes(chain.sidecar.pid))
        crowd.sidecar_is_down = True
        chain.sidecar.send(signal.SIGKILL)
        await chain.sidecar.ended()
        await chain.sidecar.start()
        await chain.listening(after=seen)
        crowd.sidecars += 1
        crowd.sidecar_is_down = False

    async def _stop_model(self) -> None:
        await self._stopped(self.chain.model.send)

    async def _stop_sidecar(self) -> None:
        await self._stopped(self.chain.sidecar.send)

    async def _stopped(self, send: Callable[[signal.Signals], None]) -> None:
        send(signal.SIGSTOP)
        await asyncio.sleep(self.crowd.random.uniform(*_STOP_SECONDS))
        send(signal.SIGCONT)

    async def _edit(self) -> None:
        choice = self.crowd.random.choice
        self.chain.configure(
            replace(
                self.settings,
                policy=choice(list(PolicyName)),
                max_batch_size=choice([8, 16, 32]),
                target_seconds=choice([None, 0.05]),
            )
        )

    async def _reset(self) -> None:
        await self.crowd.reset(_RESETS)

    async def _overload(self) -> None:
        usual, self.crowd.kinds = self.crowd.kinds, _OVERLOAD
        await asyncio.sleep(self.crowd.random.uniform(*_OVERLOAD_SECONDS))
        self.crowd.kinds = usual
