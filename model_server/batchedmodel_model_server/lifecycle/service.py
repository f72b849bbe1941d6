"""The model as the link sees it: brought up, asked, replaced, drained.

The first version is loaded and warmed up on the compute thread while the socket is up already. A
new version is loaded by a thread of its own beside the one that serves, and its trial passes take
turns with that one's batches. The rest of a profile is measured while the version serves.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.link.model_frames import ServedModel
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.lora import AdapterState
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.batching.declaration import FIRST_VERSION, describe
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, NotReady, Overloaded, words
from batchedmodel_model_server.execution.device_thread import DeviceThread, TrialScheduling, either
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.execution.runner import Runner
from batchedmodel_model_server.execution.watchdog import Watchdog
from batchedmodel_model_server.generation.engine_loop import Rules
from batchedmodel_model_server.generation.serving import (
    FirstSteps,
    Serving,
    first_steps,
    serving_of,
)
from batchedmodel_model_server.lifecycle.loading import (
    SELF_TESTS,
    WARM_UP,
    StartUp,
    load,
    return_memory,
    unload,
)
from batchedmodel_model_server.lifecycle.versions import Changes, Lifecycle, Version, Versions
from batchedmodel_model_server.lora.serving import AdapterWishes
from batchedmodel_model_server.profiling.trial import Trial, measure_when_idle
from batchedmodel_model_server.sources.folder import content_of

MAX_IN_FLIGHT: Final = 64
"""Batches. The proxy hands over two; only a caller that does not wait for answers has more."""
_LAST_ARRIVALS_SECONDS: Final = 0.05  # ample for a local socket and for the news of the end
_GIVE_BACK_SECONDS: Final = 5.0  # an end waits for the handler's own so long, and no longer

QUIET_SECONDS: Final = 60.0
"""A replaced version that nobody asks for so long is unloaded. The proxy says earlier that it does
not need it any more; other callers do not."""
SETTLE_SECONDS: Final = 10.0
"""A model that is warm waits so long for its adapters, before it serves without some of them."""
_log = logging.getLogger(__name__)


class ModelService:
    """One model from its settings to its last answer, whichever of its versions serves."""

    def __init__(
        self, settings: ModelServerSettings, source: Source | None, compute: DeviceThread
    ) -> None:
        self.name = settings.model_name
        self.lifecycle = Lifecycle()
        self._settings = settings
        self._source = source
        self._compute = compute
        self._loop = asyncio.get_running_loop()
        self._loader: DeviceThread | None = None
        self._known = Versions(self.name)
        self._changes = Changes(self._not_ready)
        self._watchdog = Watchdog(self._loop, self._watched)
        self._turns = TrialScheduling(self._loop, compute, self._watchdog)
        self._wishes = AdapterWishes(settings)
        self.lost = asyncio.Event()
        """Set when only a new process can use the device again."""
        self._hopeless = asyncio.Event()
        """Set while the model answers nothing: a pass hangs, or the device is lost."""
        self._takes_batches = False

    async def bring_up(self, start: StartUp | None = None) -> None:
        """Load and warm up; ends in READY or FAILED. `start` has what came before, if anything."""
        with suppress(CannotLoad, DeviceLost, NotReady):
            await self._changes.do(partial(self._load, start), loads=True)

    async def load(self) -> None:
        """Serve what the source holds now, if that is not what is served.

        It is loaded beside what is served, warmed up, and only then takes that one's place. Raises
        `CannotLoad`, with which nothing has changed for callers, `DeviceLost`, and `NotReady` while
        the model or the server is on its way out.
        """
        if self.lifecycle.state is ModelState.DRAINING:
            raise self._not_ready()
        await self._changes.do(self._load, loads=True)

    async def unload(self) -> None:
        """Answer everything accepted and give the memory back.

        Raises `NotReady` when a pass hangs and when the server is on its way out.
        """
        await self._changes.do(self._unload, loads=False)

    def admitted(self, version: str | None = None) -> AbstractContextManager[Runner]:
        """Around one batch: the runner that answers it; a drain waits for its end.

        Without a version the one that serves answers. Raises `NotReady`, `Overloaded`,
        `UnknownModel`.
        """
        if not self._takes_batches or (version is None and self._known.serving is None):
            raise self._not_ready()
        if sum(one.in_work for one in self._known) >= MAX_IN_FLIGHT:
            raise Overloaded(f"{MAX_IN_FLIGHT} batches are under way already")
        return self.of(version).asked()

    def of(self, version: str | None = None) -> Version:
        """The version of that name, by default the one that serves or, before that, comes up.

        Raises `NotReady`, and `UnknownModel` for a name that is none.
        """
        if version is not None:
            return self._known.named(version)
        present = self._known.present
        if present is None:
            raise self._not_ready()
        return present

    @property
    def serving(self) -> Version | None:
        """The version that serves."""
        return self._known.serving

    def index(self, *, ready_only: bool = False) -> list[dict[str, str]]:
        """A row for each version, the newest last."""
        ready = self._known.serving if self.ready else None
        return [one.row() for one in self._known if one is ready or not ready_only]

    async def drain(self, frames_whole: Callable[[], Awaitable[None]] | None = None) -> None:
        """Announce the end, answer everything accepted once `frames_whole` returns, and unload.

        Waits neither for a hung pass or a lost device, nor for loading, which cannot be
        interrupted, nor for a handler that takes too long to unload.
        """
        self.lifecycle.end("the server was told to stop")
        self._changes.stop()
        if self._loader is not None:
            self._loader.finish()
        for one in self._known:
            one.end_measuring()
        owing = [one for one in self._known if one.state in (ModelState.READY, ModelState.DRAINING)]
        if not owing or not self.live:
            return
        # The sockets may hold batches whose senders could not know of the end.
        await asyncio.sleep(_LAST_ARRIVALS_SECONDS)
        if frames_whole is not None:
            await frames_whole()
        self._takes_batches = False
        for one in owing:
            one.release()
            await either(one.idle, self._hopeless)
        if self._hopeless.is_set():
            return
        self._watchdog.close()
        try:
            async with asyncio.timeout(_GIVE_BACK_SECONDS):
                for one in owing:
                    if one.state is ModelState.READY:
                        await self._give_back(one)
                        one.enter(ModelState.UNLOADED, self.lifecycle.event.detail)
                    await either(one.gone, self._hopeless)
        except TimeoutError:
            _log.warning("the handler takes more than %g s to unload", _GIVE_BACK_SECONDS)

    @property
    def ready(self) -> bool:
        """Whether batches are asked for; while the server drains, late ones are still taken."""
        return self.lifecycle.state is ModelState.READY

    @property
    def live(self) -> bool:
        """False when only a restart helps."""
        return not self._hopeless.is_set()

    @property
    def hung(self) -> bool:
        """Whether batches are at work that will not be answered."""
        return self._hopeless.is_set() and not self.lost.is_set()

    async def _load(self, start: StartUp | None = None) -> None:
        version = Version(self.name)
        try:
            with version.at_work():
                await self._brought_up(version, start or StartUp())
            return
        except DeviceLost as error:
            version.enter(ModelState.FAILED, str(error))
            self._lose(error)
            raise
        except asyncio.CancelledError:
            version.enter(ModelState.FAILED, "the server was told to stop before it was loaded")
            raise
        except CannotLoad as error:
            # Another one: the frames of this hold the model, whose memory is to be given back.
            failure = CannotLoad(str(error))
        except BaseException as error:
            _log.exception("bringing up the model failed")
            failure = CannotLoad(words(error))
        self._known.add(version)
        await self._give_back(version)
        self._tell(version, ModelState.FAILED, str(failure))
        raise failure

    async def _brought_up(self, version: Version, start: StartUp) -> None:
        settings, source, serving = self._settings, self._source, self._known.serving
        thread, turns = self._compute, None
        if serving is not None:
            # The compute thread has answers to give meanwhile.
            if self._loader is None:
                self._loader = DeviceThread(self._loop, "loading")
                self._loader.start()
            thread, turns = self._loader, self._turns
            content = await thread.call(
                lambda: content_of(source, Path(settings.cache_folder), trust=settings.trust)
            )
            if content == serving.content:
                _log.info("version %s is what the source holds, and is served", serving.name)
                return
            await self._known.name(version, content)
        self._known.add(version)
        self._tell(version, ModelState.LOADING, f"loading with handler {settings.handler}")
        wanted = self._wishes.read()
        loaded = await thread.call(lambda: load(settings, source, start, wanted))
        version.handler = loaded.handler
        if version.content is None:
            await self._known.name(version, loaded.content)
        elif version.content != loaded.content:
            raise CannotLoad("the source changed while it was being read; load it again")
        clock = time.monotonic if turns is None else turns.clock
        trying = loaded if turns is None else replace(loaded, turn=turns.take)
        with start.phase(SELF_TESTS):
            trial = await thread.call(lambda: Trial(trying, settings, clock, alone=turns is None))
        model = replace(trial.model, turn=None)
        description = describe(
            self.name,
            model.handler,
            model.declaration,
            version=version.name or FIRST_VERSION,
            idempotent=model.idempotent,
        )
        if wanted is not None and model.handler.bank is not None:
            told = partial(self._tell_adapters, version)
            version.adapters = self._wishes.begin(model.handler.bank, wanted, told)
        self._tell(version, ModelState.WARMING, f"warming up on {model.device}")
        cap = MemoryCap()
        with start.phase(WARM_UP):
            profile = await thread.call(lambda: trial.profile(cap))
            steps = await thread.call(lambda: first_steps(model, turns))
        profile = replace(profile, start_up=start.seconds)
        runner = Runner(
            model,
            self._compute,
            profile=profile,
            cap=cap,
            watchdog=self._watchdog,
            lost=self._lose,
            adapters=version.adapters,
        )
        if version.adapters is not None:
            # Whoever hears that the model is ready asks for them at once.
            await version.adapters.settled(SETTLE_SECONDS)
        texts = Serving() if steps is None else self._serving(version, steps)
        served = ServedModel(
            description=description,
            profile=profile,
            generation=texts.description,
            tokenizer=model.handler.tokenizer or (steps.generator.tokenizer if steps else b""),
        )
        version.warm(served, runner, texts.engine)
        where = f"{model.device} in {model.handler.precision}"
        self._serve(version, f"ready on {where} after {start}")
        if trial.warm_up is not None:
            whole = partial(self._more_is_measured, version)
            version.measure(measure_when_idle(trial, self._turns, self._known, whole, self._lose))

    def _more_is_measured(self, version: Version, profile: Profile) -> None:
        version.measured(profile)
        self.lifecycle.more_is_measured()

    def _serving(self, version: Version, steps: FirstSteps) -> Serving:
        """What generates the version's texts."""

        def refusal() -> str | None:
            takes = version.takes and self.live and not self.lifecycle.ended
            return None if takes else str(self._not_ready())

        rules = Rules(refusal=refusal, at_work=version.at_work, lost=self._lose)
        return serving_of(
            steps,
            compute=self._compute,
            watchdog=self._watchdog,
            rules=rules,
            adapters=version.adapters,
        )

    def _tell(self, version: Version, state: ModelState, reason: str) -> None:
        """A version's state is the model's as long as no other serves."""
        version.enter(state, reason)
        if self._known.serving is None:
            self.lifecycle.enter(state, reason)
        else:
            level = logging.ERROR if state is ModelState.FAILED else logging.INFO
            _log.log(level, "version %s: %s: %s", version.name, state, reason)

    def _serve(self, version: Version, reason: str) -> None:
        """From now on this version answers requests that name none."""
        old, self._known.serving = self._known.serving, version
        version.enter(ModelState.READY, reason)
        if self.live:
            states = None if version.adapters is None else version.adapters.states
            self._tell_adapters(version, states)
            self.lifecycle.enter(ModelState.READY, reason, version.name)
            # The order to stop may have come first: nothing follows DRAINING.
            self._takes_batches = self.ready
        if old is not None:
            replaced = f"version {version.name} serves in its place"
            old.enter(ModelState.DRAINING, replaced)
            self._changes.begin(self._retire(old, replaced))

    def _tell_adapters(self, version: Version, states: tuple[AdapterState, ...] | None) -> None:
        if version is self._known.serving:
            self.lifecycle.adapters_are(states)

    async def _retire(self, old: Version, reason: str) -> None:
        # Requests that were read for it may still be on their way.
        await old.forsaken(QUIET_SECONDS)
        await self._give_back(old)
        old.enter(ModelState.UNLOADED, reason)
        _log.info("version %s: %s: %s", old.name, old.state, reason)

    async def _unload(self) -> None:
        version, reason = self._known.serving, "unloaded because somebody asked for it"
        if version is None:
            return
        if not self.live:
            raise self._not_ready()
        version.enter(ModelState.DRAINING, reason)
        self.lifecycle.enter(ModelState.DRAINING, reason)
        await asyncio.sleep(_LAST_ARRIVALS_SECONDS)
        self._known.serving = None
        await self._give_back(version)
        version.enter(ModelState.UNLOADED, reason)
        for old in self._known:
            old.release()
            await old.gone.wait()
        self.lifecycle.enter(ModelState.UNLOADED, reason)

    async def _give_back(self, version: Version) -> None:
        """Unload what was loaded of it, once its batches are answered."""
        handler = await version.closed()
        if handler is None:
            return
        beside = self._known.serving not in (None, version)
        try:
            marks = await self._compute.call(partial(unload, handler))
            del handler
            # The end of the process returns it faster.
            if not self.lifecycle.ended:
                await self._compute.call(partial(return_memory, marks, beside=beside))
        except asyncio.CancelledError:
            raise
        except BaseException:
            # Others wait for the version's end, whatever is left of it.
            _log.exception("version %s: not all of its memory was given back", version.name)

    def _lose(self, error: DeviceLost) -> None:
        """A batch, a step or a load has lost the device; several may say so."""
        self._takes_batches = False
        self._hopeless.set()
        self.lifecycle.enter(ModelState.LOST, str(error))
        self.lost.set()

    def _watched(self, hung: str | None) -> None:
        """From the watchdog: a pass is overdue, or has ended after all."""
        serving = self._known.serving
        if hung is not None:
            self._hopeless.set()
            self.lifecycle.enter(ModelState.HUNG, hung)
        elif not self.lost.is_set():
            self._hopeless.clear()
            if serving is not None and serving.state is ModelState.READY:
                reason = "the pass that hung has ended"
                self.lifecycle.enter(ModelState.READY, reason, serving.name)
            elif self._known.present is not None:
                self.lifecycle.enter(self._known.present.state, self._known.present.reason)
        # A server that was told to stop takes the last arrivals only.
        if not self.lifecycle.ended:
            self._takes_batches = self.live

    def _not_ready(self) -> NotReady:
        event = self.lifecycle.event
        return NotReady(f"model {self.name} is {event.state}: {event.detail}")
