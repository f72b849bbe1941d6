"""The adapters of one version of the model, from the file that names them to the device.

Follows that file and the folders of adapters, fetches, reads and keeps what they name, and lends it
to batches and texts. On the event loop; files are read by threads.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import AdapterSettings, AdapterState
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.api.adapters import Adapters as Bank
from batchedmodel_model_server.errors import CannotLoad, legible, words
from batchedmodel_model_server.lora.registry import (
    AT_ONCE,
    AdapterStore,
    Job,
    Kept,
    Roster,
    Weights,
)
from batchedmodel_model_server.lora.slots import DeviceAdapters
from batchedmodel_model_server.lora.wanted import Look, read_settings
from batchedmodel_model_server.sources.folder import Content, content_of
from batchedmodel_model_server.sources.hub import OFFLINE
from batchedmodel_model_server.tasks import begun

GONE: Final = "its adapter is not served any more"
Told = Callable[[tuple[AdapterState, ...]], None]
_FETCHED: Final = "adapters"
"""What adapters from a hub lie in, below the cache folder."""
_LOOK_SECONDS: Final = 1.0
"""From one look at what there should be to the next one."""
_LONGEST_REASON: Final = 1024
_READERS: Final = 2
_LONGEST_RETURN: Final = 5.0
"""For which a batch waits for an adapter that is read again. A disk may hang, and others wait."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """Adapters that a batch may use until its end."""

    weights: Mapping[int, Weights]
    """By number."""
    missing: Mapping[int, str] = field(default_factory=dict)
    """Why the others are not there."""


class AdapterWishes:
    """Where a process is told which adapters there should be, and the numbers that it has given."""

    def __init__(
        self, settings: ModelServerSettings, environ: Mapping[str, str] = os.environ
    ) -> None:
        folder = settings.adapters_folder
        self._folder: Final = Path(folder) if folder else None
        # Not among the model's own files: in a pod these can only be read.
        self._cache_folder: Final = Path(settings.cache_folder, _FETCHED)
        online = settings.adapters_online
        self._environ: Final = (
            {name: value for name, value in environ.items() if name not in OFFLINE}
            if online
            else environ
        )
        self._numbers: Final = count(1)

    def read(self) -> AdapterSettings | None:
        """What the file says; None where there are no adapters. Raises `CannotLoad`."""
        try:
            return None if self._folder is None else read_settings(self._folder)
        except InvalidInput as error:
            raise CannotLoad(f"adapters: {error}") from error

    def find(self, source: Source) -> Content:
        """An adapter's files, fetched if need be; raises `CannotLoad`. For threads that block."""
        return content_of(source, self._cache_folder, environ=self._environ)

    def begin(self, bank: Bank, settings: AdapterSettings, told: Told) -> "Adapters":
        """The adapters of one version of the model, which follow the file from now on."""
        assert self._folder is not None, "the settings are those of the file"
        adapters = Adapters(
            DeviceAdapters(bank, settings.slots),
            self._folder,
            settings,
            self.find,
            self._numbers,
            told,
        )
        adapters.begin()
        return adapters


class Adapters:
    """All adapters of one version. `begin` starts it, `end` ends it."""

    def __init__(
        self,
        device: DeviceAdapters,
        folder: Path,
        settings: AdapterSettings,
        find: Callable[[Source], Content],
        numbers: Iterator[int],
        told: Told,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` has the file with the settings; `find` brings the files of a source.

        `told` hears of every change of the states.
        """
        self.device: Final = device
        self._folder: Final = folder
        self._look = Look(settings)
        self._find: Final = find
        self._tell: Final = told
        self._clock: Final = clock
        self._loop: Final = asyncio.get_running_loop()
        self._roster: Final = Roster(numbers)
        self._store: Final = AdapterStore(settings.cpu_memory_bytes)
        self._settled: Final = asyncio.Event()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._returning: Final[dict[int, tuple[asyncio.Task[None], float]]] = {}
        """Adapters that had made room for others and are being read again, and since when."""
        # Of their own: a hub that is slow must hold up neither batches nor what is on the disk.
        self._fetching: Final = ThreadPoolExecutor(2 * AT_ONCE, "fetching adapters")
        # A remote folder may let whoever looks there wait for minutes.
        self._looking: Final = ThreadPoolExecutor(1, "looking for adapters")
        self._reading: Final = ThreadPoolExecutor(_READERS, "reading adapters")
        self.states: tuple[AdapterState, ...] = ()

    def begin(self) -> None:
        """Follow what should be there."""
        begun(self._follow(), self._tasks)

    async def settled(self, seconds: float) -> None:
        """Return once each adapter is served or could not be, or after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    def end(self) -> None:
        """Follow nothing any more; what is lent stays."""
        for task in list(self._tasks):
            task.cancel()
        for threads in (self._fetching, self._looking, self._reading):
            threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def lent(self, numbers: Collection[int]) -> AsyncIterator[Lent]:
        """Around the passes of a batch: its adapters, read again where they had made room."""
        held = [kept for number in numbers if (kept := self._store.hold(number)) is not None]
        missing = dict.fromkeys(set(numbers) - {kept.number for kept in held}, GONE)
        weights: dict[int, Weights] = {}
        try:
            for kept in held:
                # All at once, for each may wait as long as one.
                self._read_if_missing(kept)
            for kept in held:
                try:
                    weights[kept.number] = await self.in_memory(kept)
                except CannotLoad as error:
                    missing[kept.number] = f"its adapter cannot be read again: {error}"
            yield Lent(weights=weights, missing=missing)
        finally:
            for kept in held:
                self.give_back(kept)

    def hold(self, number: int) -> Kept | None:
        """Of a text, its adapter until `give_back`; None where it is unknown."""
        return self._store.hold(number)

    def give_back(self, kept: Kept) -> None:
        """The end of what `hold` began."""
        self._store.release(kept, self._clock())
        self._store.make_room(self.device.table.resident)

    def labels_of(self, number: int) -> tuple[str, ...] | None:
        """By which an adapter classifies, if it is here and has some of its own."""
        return self._store.labels_of(number)

    async def in_memory(self, kept: Kept) -> Weights:
        """The weights of one that is held; raises `CannotLoad`."""
        while kept.weights is None:
            now = self._clock()
            self._read_if_missing(kept)
            reading, since = self._returning[kept.number]
            # It goes on for those who ask later, and one that leaves must not stop it for others.
            await asyncio.wait((reading,), timeout=max(0.0, since + _LONGEST_RETURN - now))
            if not reading.done():
                raise CannotLoad(f"its files have been read for {_LONGEST_RETURN:.0f} s so far")
            reading.result()
        return kept.weights

    def _read_if_missing(self, kept: Kept) -> None:
        if kept.weights is not None or kept.number in self._returning:
            return
        again = begun(self._read_again(kept), self._tasks)
        # Nobody may wait any more once it fails.
        again.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._returning[kept.number] = again, self._clock()

    async def _read_again(self, kept: Kept) -> None:
        try:
            kept.weights, kept.size = await self._read(kept.content)
            # Whoever asked for it may have gone.
            self._store.make_room(self.device.table.resident)
        except CannotLoad:
            raise
        except Exception as error:
            raise CannotLoad(words(error)) from error
        finally:
            del self._returning[kept.number]

    async def _follow(self) -> None:
        rest = 0.0
        while True:
            before, look = self._look, self._look.again
            found = self._look = await self._loop.run_in_executor(
                self._looking, look, self._folder, self._find
            )
            for problem in set(found.problems) - set(before.problems):
                _log.warning("adapters: %s", problem)
            now = self._clock()
            self._store.retire(self._roster.want(found.sources, now), now)
            for name in dict(found.digests.items() - before.digests.items()):
                self._roster.look_again(name, now + rest)
            self._store.expire(now)
            self._go_on()
            await asyncio.sleep(_LOOK_SECONDS)
            # Files of one adapter come one after the other: it waits until a look finds no more.
            rest = 0.9 * _LOOK_SECONDS

    def _go_on(self) -> None:
        for job in self._roster.begin(self._clock()):
            begun(self._bring_up(job), self._tasks)
        self._publish()

    async def _bring_up(self, job: Job) -> None:
        try:
            await self._brought_up(job)
        except CannotLoad as error:
            self._failed(job, str(error))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            _log.exception("adapter %s cannot be loaded now", job.name)
            self._failed(job, f"it cannot be loaded now: {words(error)}", passing=True)
        finally:
            self._roster.ended(job, self._clock())
        self._go_on()

    async def _brought_up(self, job: Job) -> None:
        content = await self._loop.run_in_executor(self._fetching, self._find, job.source)
        number = self._roster.found(job, content)
        if number is None:
            return
        self._publish()
        weights, size = await self._read(content)
        with suppress(KeyError):  # it was removed meanwhile
            labels = self.device.bank.labels_of(weights)
            replaced = self._roster.loaded(job, number, own_labels=labels is not None)
            self._store.add(Kept(number, content, weights, size, labels))
            now = self._clock()
            self._store.retire([] if replaced is None else [replaced], now)
            self._store.make_room(self.device.table.resident)
            _log.info("adapter %s is served as %d: %s", job.name, number, content.folder)

    async def _read(self, content: Content) -> tuple[Weights, int]:
        """An adapter and its size; raises `CannotLoad`."""
        folder, bank = content.folder, self.device.bank
        assert folder is not None, "every adapter has a source"

        def read() -> tuple[Weights, int]:
            weights = bank.read(folder)
            if self._find(Source(path=str(folder))).digest != content.digest:
                raise CannotLoad("its files are not the same any more")
            return weights, bank.bytes_of(weights)

        return await self._loop.run_in_executor(self._reading, read)

    def _failed(self, job: Job, reason: str, *, passing: bool = False) -> None:
        reason = legible(reason[:_LONGEST_REASON])[:_LONGEST_REASON]
        _log.error("adapter %s: %s", job.name, reason)
        self._roster.failed(job, reason, self._clock(), passing=passing)

    def _publish(self) -> None:
        states = self._roster.states()
        if self._roster.settled:
            self._settled.set()
        if states != self.states:
            self.states = states
            self._tell(states)
