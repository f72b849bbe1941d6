"""One version of the model, from the order to load it to its end.

Owned by the service, which decides what becomes of it. It counts the batches in work for it, so
that its end can wait for their answers, and lets go of everything when it is unloaded.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.processes.server_api import ModelState
from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.errors import NotReady
from batchedmodel_model_server.execution.runner import Runner
from batchedmodel_model_server.sources.contents import Content


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warm:
    """What exists once it is warmed up."""

    profile: Profile
    runner: Runner


class Version:
    """All on the event loop's thread."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self.name: str | None = None
        """None until its source has been read."""
        self.content: Content | None = None
        self.state = ModelState.LOADING
        self.reason = ""
        self._handler: Handler | None = None
        self._description: ModelDescription | None = None
        self._warm: _Warm | None = None
        self._is_closed = False
        self._in_work = 0
        self._asked_at = -math.inf
        self.idle = asyncio.Event()
        """Set while no batch is in work for it."""
        self.idle.set()
        self._released = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when its end has come: it failed, or its memory was given back."""

    def enter(self, state: ModelState, reason: str) -> None:
        """Change its state."""
        self.state, self.reason = state, reason
        if state in (ModelState.FAILED, ModelState.UNLOADED):
            self.gone.set()

    def loaded(self, handler: Handler) -> None:
        """There is something to be unloaded from now on."""
        self._handler = handler

    def described(self, description: ModelDescription) -> None:
        """Its callers can know what it takes from now on."""
        self._description = description

    def warm(self, profile: Profile, runner: Runner) -> None:
        """It can be asked from now on."""
        self._warm = _Warm(profile=profile, runner=runner)

    @contextmanager
    def asked(self) -> Iterator[Runner]:
        """Around one batch: the runner that answers it; raises `NotReady`."""
        if self._warm is None or self._is_closed:
            raise self._not_ready()
        self._in_work += 1
        self.idle.clear()
        try:
            yield self._warm.runner
        finally:
            self._in_work -= 1
            self._asked_at = self._clock()
            if self._in_work == 0:
                self.idle.set()

    def release(self) -> None:
        """Whoever followed the model needs it no more, which another has replaced."""
        if self.state is not ModelState.READY:
            self._released.set()

    async def forsaken(self, quiet_seconds: float) -> None:
        """Return once it is released, or nobody has asked it for so long."""
        began = self._clock()
        while True:
            left = max(began, self._asked_at) + quiet_seconds - self._clock()
            if left <= 0 and self.idle.is_set():
                return
            try:
                async with asyncio.timeout(left if left > 0 else quiet_seconds):
                    await self._released.wait()
                    return
            except TimeoutError:
                continue

    async def closed(self) -> Handler | None:
        """What is to be unloaded, once the batches at work are answered; no other is taken."""
        self._is_closed = True
        while self._in_work:
            await self.idle.wait()
        self._warm = self._description = None
        handler, self._handler = self._handler, None
        return handler

    @property
    def in_work(self) -> int:
        """Batches that have no answer yet."""
        return self._in_work

    @property
    def description(self) -> ModelDescription:
        """What the model takes and gives; raises `NotReady` until it is loaded."""
        if self._description is None:
            raise self._not_ready()
        return self._description

    @property
    def tokenizer(self) -> bytes | None:
        """The tokenizer.json, if the model has one; raises `NotReady` until it is loaded."""
        if self._handler is None:
            raise self._not_ready()
        return self._handler.tokenizer

    @property
    def profile(self) -> Profile:
        """The latency curve, and what the memory holds as is known by now.

        Raises `NotReady` until the warm-up has ended.
        """
        if self._warm is None:
            raise self._not_ready()
        return replace(self._warm.profile, max_cost=self._warm.runner.max_cost)

    def row(self) -> dict[str, str]:
        """Its row in the index of the repository."""
        version = {} if self.name is None else {"version": self.name}
        return {"name": self._model, **version, "state": self.state, "reason": self.reason}

    def _not_ready(self) -> NotReady:
        called = "" if self.name is None else f" version {self.name}"
        return NotReady(f"model {self._model}{called} is {self.state}: {self.reason}")
