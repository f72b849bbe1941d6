"""The versions of the model that the process knows, their state, and changes of what is served.

One version serves, others come or go. The service decides what becomes of them. A version counts
the batches in work for it, so that its end can wait for their answers.

The model is LOADING, WARMING, READY, DRAINING, UNLOADED; from there it may be loaded again. FAILED
says why and stays, so that the reason can be read from the running process. A new version that is
loaded beside the one that serves changes nothing until it is READY. All on the event loop's thread.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.link.model_frames import ServedModel, State
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.lora import AdapterState
from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.batching.declaration import FIRST_VERSION
from batchedmodel_model_server.errors import CannotLoad, NotReady, UnknownModel, legible
from batchedmodel_model_server.execution.runner import Runner
from batchedmodel_model_server.generation.engine_loop import EngineLoop
from batchedmodel_model_server.lora.serving import Adapters
from batchedmodel_model_server.sources.folder import Content
from batchedmodel_model_server.tasks import begun

Work = Coroutine[None, None, None]
_log = logging.getLogger(__name__)
_LONGEST_DETAIL: Final = 8192
_MOST_ENDED: Final = 8
"""Remembered, for the reasons why they ended."""


class Topic(Enum):
    """What of the model has changed."""

    STATE = auto()
    ADAPTERS = auto()
    PROFILE = auto()
    """More was measured of the version that is READY."""


Follower = Callable[[Topic], None]


class Lifecycle:
    """Owns the present state."""

    def __init__(self) -> None:
        self.event = State(ModelState.LOADING, "the server has started")
        self.ended = False
        """Whether the process is about to end."""
        self.adapters: tuple[AdapterState, ...] | None = None
        """All adapters of the model; None where it has none."""
        self._followers: dict[Follower, None] = {}

    @property
    def state(self) -> ModelState:
        """The present state."""
        return self.event.state

    def end(self, detail: str) -> None:
        """DRAINING, and nothing comes after it."""
        self.enter(ModelState.DRAINING, detail)
        self.ended = True

    def enter(self, state: ModelState, detail: str, version: str | None = None) -> None:
        """Change the state, unless it has ended; `version`: which is READY."""
        if self.ended:
            return
        # A file may say anything; the sidecar reads no frame without end.
        detail = legible(detail[:_LONGEST_DETAIL])[:_LONGEST_DETAIL]
        self.event = State(state, detail, version)
        self._tell(Topic.STATE)
        level = logging.ERROR if state is ModelState.FAILED else logging.INFO
        _log.log(level, "%s: %s", state, detail)

    def adapters_are(self, adapters: tuple[AdapterState, ...] | None) -> None:
        """Change the adapters; None: the model has none."""
        if adapters != self.adapters:
            self.adapters = adapters
            self._tell(Topic.ADAPTERS)

    def more_is_measured(self) -> None:
        """The version that is READY has another profile."""
        self._tell(Topic.PROFILE)

    def follow(self, follower: Follower) -> None:
        """Call this at each change, until it leaves."""
        self._followers[follower] = None

    def leave(self, follower: Follower) -> None:
        """Call this no more."""
        self._followers.pop(follower, None)

    def _tell(self, topic: Topic) -> None:
        for follower in tuple(self._followers):
            follower(topic)


class Changes:
    """Changes of what is served: one at a time, each to its end unless the server is stopped."""

    def __init__(self, refusal: Callable[[], NotReady]) -> None:
        """`refusal` makes what is raised once no change is taken any more."""
        self._refusal = refusal
        self._one = asyncio.Lock()
        self._loads: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._has_stopped = False

    async def do(self, work: Callable[[], Work], *, loads: bool) -> None:
        """Do work behind the changes before it; raises the refusal, and what the work raises.

        A stop interrupts what `loads`, and lets other work end.
        """

        async def alone() -> None:
            async with self._one:
                if self._has_stopped:
                    raise self._refusal()
                await work()

        change = begun(alone(), self._loads if loads else self._ends)
        try:
            # A caller that leaves must not stop it half-way.
            await asyncio.shield(change)
        except asyncio.CancelledError:
            if not change.cancelled():
                raise
            raise self._refusal() from None

    def begin(self, end: Work) -> None:
        """Have a version's end take its course, beside other changes."""
        begun(end, self._ends)

    def stop(self) -> None:
        """Interrupt what loads, and take no change any more."""
        self._has_stopped = True
        for load in self._loads:
            load.cancel()


class Version:
    """One version, from the order to load it to its end."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self.name: str | None = None
        """None until its source has been read."""
        self.content: Content | None = None
        self.state = ModelState.LOADING
        self.reason = ""
        self.handler: Handler | None = None
        """What is to be unloaded at its end."""
        self.adapters: Adapters | None = None
        self.engine: EngineLoop | None = None
        """What generates; None where it generates nothing, or not yet, or not any more."""
        self._served: ServedModel | None = None
        self._runner: Runner | None = None
        self._is_closed = False
        self.in_work = 0
        """Batches that have no answer yet; an engine that has texts counts as one, a load too."""
        self._measuring: asyncio.Task[None] | None = None
        self._asked_at = -math.inf
        self.idle = asyncio.Event()
        """Set while no batch is in work for it."""
        self.idle.set()
        self._released = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when its end has come: it failed, or its memory was given back."""

    def enter(self, state: ModelState, reason: str) -> None:
        """Change its state."""
        self.state, self.reason = state, legible(reason)
        if state is not ModelState.READY:
            self.end_measuring()
        if state in (ModelState.FAILED, ModelState.UNLOADED):
            self.gone.set()

    def warm(self, served: ServedModel, runner: Runner, engine: EngineLoop | None = None) -> None:
        """It can be asked from now on; `engine`: for texts, where it generates any."""
        self._served, self._runner, self.engine = served, runner, engine

    def measure(self, work: Coroutine[None, None, None]) -> None:
        """Have its profile measured while it serves, until it serves no more."""
        self._measuring = asyncio.create_task(work)

    def end_measuring(self) -> None:
        """Its profile stays as it is."""
        if self._measuring is not None:
            self._measuring.cancel()
            self._measuring = None

    def measured(self, profile: Profile) -> None:
        """More of it was measured than it was ready with."""
        if self._served is not None and self._runner is not None:
            start_up = self._served.profile.start_up
            self._served = replace(self._served, profile=replace(profile, start_up=start_up))
            self._runner.expect(profile)

    @contextmanager
    def asked(self) -> Iterator[Runner]:
        """Around one batch: the runner that answers it; raises `NotReady`."""
        if self._runner is None or not self.takes:
            raise self._not_ready()
        with self.at_work():
            yield self._runner

    @property
    def takes(self) -> bool:
        """Whether anything more is taken; what was taken before is still answered."""
        return not self._is_closed

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around something that its end waits for."""
        self.in_work += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.in_work -= 1
            self._asked_at = self._clock()
            if self.in_work == 0:
                self.idle.set()

    @property
    def idle_seconds(self) -> float:
        """How long nothing has been in work for it."""
        return 0.0 if self.in_work else self._clock() - self._asked_at

    def release(self) -> None:
        """Whoever followed the model does not need this version any more, as another serves."""
        if self.state is not ModelState.READY:
            self._released.set()

    async def forsaken(self, quiet_seconds: float) -> None:
        """Return once it is released, or nobody has asked it for so long."""
        began = self._clock()
        while not self._released.is_set():
            left = max(began, self._asked_at) + quiet_seconds - self._clock()
            if left <= 0 and self.idle.is_set():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else quiet_seconds):
                    await self._released.wait()

    async def closed(self) -> Handler | None:
        """What is to be unloaded, once the batches at work are answered; no other is taken."""
        self._is_closed = True
        self.end_measuring()
        while self.in_work:
            await self.idle.wait()
        if self.engine is not None:
            self.engine.end()
        if self.adapters is not None:
            self.adapters.end()
            self.adapters = None
        self._served = self._runner = self.engine = None
        handler, self.handler = self.handler, None
        return handler

    @property
    def served(self) -> ServedModel:
        """What callers must know of it, with the largest batch that its memory is known to hold.

        Raises `NotReady` until the warm-up has ended.
        """
        if self._served is None or self._runner is None:
            raise self._not_ready()
        profile = replace(self._served.profile, max_cost=self._runner.max_cost)
        return replace(self._served, profile=profile)

    def row(self) -> dict[str, str]:
        """Its row in the index of the repository."""
        version = {} if self.name is None else {"version": self.name}
        return {"name": self._model, **version, "state": self.state, "reason": self.reason}

    def _not_ready(self) -> NotReady:
        called = "" if self.name is None else f" version {self.name}"
        return NotReady(f"model {self._model}{called} is {self.state}: {self.reason}")


class Versions:
    """All of them, in the order in which they came. No two have one name at a time."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._all: list[Version] = []
        self.serving: Version | None = None

    def __iter__(self) -> Iterator[Version]:
        return iter(tuple(self._all))

    @property
    def present(self) -> Version | None:
        """The one that serves, or else the one that came last."""
        return self.serving or (self._all[-1] if self._all else None)

    def idle_seconds(self) -> float:
        """How long nothing has been in work for any of them."""
        return min((one.idle_seconds for one in self._all), default=math.inf)

    async def quiet(self, seconds: float) -> None:
        """Return once nothing has been in work for any of them for so long."""
        while True:
            for one in self:
                await one.idle.wait()
            left = seconds - self.idle_seconds()
            if left <= 0:
                return
            await asyncio.sleep(left)

    def named(self, name: str) -> Version:
        """The version of that name; raises `UnknownModel`."""
        for one in self._all:
            if one.name == name:
                return one
        raise UnknownModel(f"version {name!r} of model {self._model!r} is not known here")

    def add(self, version: Version) -> None:
        """Remember it; of those that have ended, the oldest are forgotten."""
        if version not in self._all:
            self._all.append(version)
        ended = [one for one in self._all if one.gone.is_set() and one is not version]
        for one in ended[:-_MOST_ENDED]:
            self._all.remove(one)

    async def name(self, version: Version, content: Content) -> None:
        """Call it by its number, or by the next one where versions have none.

        Waits for the end of one that has the same name and is on its way out. Raises `CannotLoad`
        when that name is the served one's.
        """
        name = self._name_of(content)
        for other in self:
            if other.name != name or other is version:
                continue
            if other is self.serving:
                raise CannotLoad(
                    f"version {name} is served, and its files have changed since it was loaded: "
                    "other files need a number of their own"
                )
            await other.gone.wait()
            if other in self._all:
                self._all.remove(other)
        version.name, version.content = name, content

    def _name_of(self, content: Content) -> str:
        if content.number is not None:
            return str(content.number)
        known = {one.name: one.content for one in self._all if one.name is not None}
        for name, loaded in known.items():
            if loaded == content:
                return name
        return str(1 + max(map(int, known))) if known else FIRST_VERSION
