"""The model as the HTTP edge sees it: brought up, asked, drained.

Loading and warm-up run on the compute thread while the socket is up already, so that health and
events answer from the first moment.
"""

import asyncio
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from batchedmodel_contract.description import ModelDescription
from batchedmodel_contract.environment import ModelServerSettings
from batchedmodel_contract.handler_names import is_file_handler
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.profile import Profile
from batchedmodel_contract.server_api import ModelState
from batchedmodel_contract.source import Source
from batchedmodel_model_server.compute import ComputeThread
from batchedmodel_model_server.declaration import declaration_of, describe
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, NotReady, Overloaded
from batchedmodel_model_server.forward import LoadedModel
from batchedmodel_model_server.handler import Handler
from batchedmodel_model_server.lifecycle import Lifecycle
from batchedmodel_model_server.memory import MemoryCap
from batchedmodel_model_server.processor import bound_operators
from batchedmodel_model_server.registry import make_handler
from batchedmodel_model_server.runner import Runner
from batchedmodel_model_server.settling import either
from batchedmodel_model_server.sources import model_folder
from batchedmodel_model_server.startup import (
    FETCH,
    IMPORTS,
    LOAD,
    SELF_TESTS,
    WARM_UP,
    StartUp,
)
from batchedmodel_model_server.trial import Trial
from batchedmodel_model_server.watchdog import Watchdog

MAX_IN_FLIGHT: Final = 64
"""Batches; the proxy hands over two, so more is somebody who does not wait for answers."""
_LAST_ARRIVALS_SECONDS: Final = 0.05  # ample for a local socket and for the news of the end

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    """What exists once the model is loaded."""

    handler: Handler
    description: ModelDescription


class ModelService:
    """One model from its settings to its last answer."""

    def __init__(
        self, settings: ModelServerSettings, source: Source | None, compute: ComputeThread
    ) -> None:
        self.name = settings.model_name
        self.lifecycle = Lifecycle()
        self._settings = settings
        self._source = source
        self._compute = compute
        self._serving: _Serving | None = None
        self._profile: Profile | None = None
        self._runner: Runner | None = None
        self._watchdog = Watchdog(asyncio.get_running_loop(), self._watched)
        self.lost = asyncio.Event()
        """Set when only a new process can use the device again."""
        self._hopeless = asyncio.Event()
        """Set while the model answers nothing: a pass hangs, or the device is lost."""
        self._takes_batches = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def bring_up(self, start: StartUp | None = None) -> None:
        """Load and warm up; ends in READY or FAILED. `start` has what came before, if anything."""
        settings, lifecycle = self._settings, self.lifecycle
        start = start or StartUp()
        lifecycle.enter(ModelState.LOADING, f"loading with handler {settings.handler}")
        try:
            loaded = await self._compute.call(lambda: load(settings, self._source, start))
            with start.phase(SELF_TESTS):
                trial = await self._compute.call(lambda: Trial(loaded, settings))
            model = trial.model
            self._serving = _Serving(
                handler=model.handler,
                description=describe(
                    self.name, model.handler, model.declaration, idempotent=model.idempotent
                ),
            )
            lifecycle.enter(ModelState.WARMING, f"warming up on {model.device}")
            cap = MemoryCap()
            with start.phase(WARM_UP):
                profile = await self._compute.call(lambda: trial.profile(cap))
            self._profile = replace(profile, start_up=start.seconds)
            self._runner = Runner(
                model,
                self._compute,
                profile=self._profile,
                cap=cap,
                watchdog=self._watchdog,
                lost=self._lose,
            )
        except CannotLoad as error:
            lifecycle.enter(ModelState.FAILED, str(error))
        except DeviceLost as error:
            self._lose(error)
        except Exception as error:
            _log.exception("bringing up the model failed")
            lifecycle.enter(ModelState.FAILED, f"{type(error).__name__}: {error}")
        else:
            lifecycle.enter(ModelState.READY, f"ready on {model.device} after {start}")
            # Not when the order to stop came first: nothing comes after DRAINING.
            self._takes_batches = self.ready

    @contextmanager
    def admitted(self) -> Iterator[Runner]:
        """Take one batch: the runner that answers it, and a drain that waits for it.

        Entered when the batch begins to arrive, so that one which is still on its way when the
        server is told to stop is answered. Raises `NotReady`, `Overloaded`.
        """
        if not self._takes_batches or self._runner is None:
            raise self._not_ready()
        if self._in_flight >= MAX_IN_FLIGHT:
            raise Overloaded(f"{MAX_IN_FLIGHT} batches are under way already")
        self._in_flight += 1
        self._idle.clear()
        try:
            yield self._runner
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()

    async def drain(self) -> None:
        """Announce the end, accept nothing more, answer everything accepted, unload the model.

        What a hung pass or a lost device will never answer is not waited for.
        """
        was_ready = self.ready
        self.lifecycle.enter(ModelState.DRAINING, "the server was told to stop")
        if not was_ready:
            # The compute thread may be deep in loading; an end must not wait for that.
            return
        # What was sent before its sender could know lies in the sockets, perhaps unread.
        await asyncio.sleep(_LAST_ARRIVALS_SECONDS)
        self._takes_batches = False
        await either(self._idle, self._hopeless)
        if self._hopeless.is_set():
            return
        self._watchdog.close()
        try:
            await self._compute.call(self._loaded().handler.unload)
        except Exception:
            _log.exception("the handler failed to unload")

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

    @property
    def description(self) -> ModelDescription:
        """What the model takes and gives; raises `NotReady` until it is loaded."""
        return self._loaded().description

    @property
    def tokenizer(self) -> bytes | None:
        """The tokenizer.json, if the model has one; raises `NotReady` until it is loaded."""
        return self._loaded().handler.tokenizer

    @property
    def profile(self) -> Profile:
        """The latency curve, and what the memory holds as is known by now.

        Raises `NotReady` until the warm-up has ended.
        """
        if self._profile is None or self._runner is None:
            raise self._not_ready()
        return replace(self._profile, max_cost=self._runner.max_cost)

    def _lose(self, error: DeviceLost) -> None:
        self._takes_batches = False
        self._hopeless.set()
        self.lifecycle.enter(ModelState.LOST, str(error))
        self.lost.set()

    def _watched(self, hung: str | None) -> None:
        """From the watchdog: a pass is overdue, or has ended after all."""
        if hung is not None:
            self._hopeless.set()
            self.lifecycle.enter(ModelState.HUNG, hung)
        elif not self.lost.is_set():
            self._hopeless.clear()
            self.lifecycle.enter(ModelState.READY, "the pass that hung has ended")
        # Not what was told to stop: that takes the last arrivals only.
        if self.lifecycle.state is not ModelState.DRAINING:
            self._takes_batches = self.ready

    def _loaded(self) -> _Serving:
        if self._serving is None:
            raise self._not_ready()
        return self._serving

    def _not_ready(self) -> NotReady:
        event = self.lifecycle.event
        return NotReady(f"model {self.name} is {event.state}: {event.detail}")


def load(
    settings: ModelServerSettings, source: Source | None, start: StartUp | None = None
) -> LoadedModel:
    """Make and load the handler, on the compute thread; raises `CannotLoad`, whatever happens."""
    start = start or StartUp()
    try:
        trust, cache = settings.trust, Path(settings.cache_folder)
        folder = None
        if is_file_handler(settings.handler):
            with start.phase(FETCH):
                folder = model_folder(source, cache, trust=trust)
        with start.phase(IMPORTS):
            handler = make_handler(settings.handler, dict(settings.parameters), folder, trust=trust)
            device = handler.device()
        # After the handler where that is elsewhere: its mistakes need not wait for a download.
        if folder is None:
            with start.phase(FETCH):
                folder = model_folder(source, cache, trust=trust)
        with start.phase(IMPORTS):
            for name in handler.libraries:
                importlib.import_module(name)
            bound_operators()
        with start.phase(LOAD):
            handler.load(folder, device)
        return LoadedModel(
            handler=handler,
            declaration=declaration_of(handler),
            device=device,
            idempotent=settings.idempotent and handler.idempotent,
            folder=folder,
        )
    except CannotLoad:
        raise
    except InvalidInput as error:
        raise CannotLoad(str(error)) from error
    except (Exception, SystemExit) as error:
        # A handler is anybody's code: its failure is the model's state, not the process's end.
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoad(f"handler {settings.handler} failed to load: {reason}") from error
