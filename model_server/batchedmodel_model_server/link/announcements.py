"""What one connection hears of the model and of the engines that its texts go to.

All of it when the connection begins, then each change.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Refused,
    StepReport,
    Submit,
    write_refused,
    write_step,
)
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.link.model_frames import (
    Adapters,
    write_adapters,
    write_engine,
    write_model,
    write_profile,
    write_state,
)
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_model_server.generation.engine_loop import Caller, EngineLoop
from batchedmodel_model_server.lifecycle.service import ModelService
from batchedmodel_model_server.lifecycle.versions import Topic, Version
from batchedmodel_model_server.lora.files import MAX_LABELS_BYTES

SendFrame = Callable[[Kind, int, Sequence[Buffer]], None]
_MODEL_ID: Final = 0  # of frames about the model, which keep their order by it


class _Joined(NamedTuple):
    engine: EngineLoop
    caller: Caller


class Announcements:
    """Sends frames about the model over one connection, and carries its texts to engines."""

    def __init__(self, service: ModelService, send: SendFrame) -> None:
        self._service = service
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._described: Version | None = None
        """The version whose MODEL was sent last."""
        self._labelled: set[int] = set()
        """Adapters whose labels were sent."""
        self._numbers = count(1)
        self._joined: dict[int, _Joined] = {}
        """Engines by the numbers that the sidecar knows."""
        self._has_ended = False

    def begin(self) -> None:
        """Send all of it, and each change from now on."""
        self._service.lifecycle.follow(self._changed)
        self._changed(Topic.ADAPTERS)
        self._changed(Topic.STATE)

    def end(self) -> None:
        """Send nothing more, and leave all engines."""
        self._has_ended = True
        self._service.lifecycle.leave(self._changed)
        for engine, caller in self._joined.values():
            engine.leave(caller)
        self._joined.clear()

    def take(self, number: int, frame: Submit | Cancel | Configure) -> None:
        """Hand a frame to the engine of that number; one that has ended needs nothing any more.

        Raises `InvalidInput` for a text whose id is taken.
        """
        joined = self._joined.get(number)
        if joined is not None:
            joined.engine.take(joined.caller, frame)

    def _changed(self, topic: Topic) -> None:
        """Send what has changed; the first frame about a version is all that is known of it."""
        serving = self._service.serving
        if topic is Topic.ADAPTERS:
            self._send_adapters()
        elif topic is Topic.PROFILE:
            if serving is not None:
                self._send(Kind.PROFILE, _MODEL_ID, [write_profile(serving.served.profile)])
        else:
            state = self._service.lifecycle.event
            is_ready = state.state is ModelState.READY
            if is_ready and serving is not None and serving is not self._described:
                self._described = serving
                self._send(Kind.MODEL, _MODEL_ID, write_model(serving.served))
            self._send(Kind.STATE, _MODEL_ID, [write_state(state)])
        self._join()

    def _send_adapters(self) -> None:
        """In several frames where there are many new labels, each with all states."""
        states, serving = self._service.lifecycle.adapters, self._service.serving
        if states is None:
            return
        labels: dict[int, tuple[str, ...]] = {}
        size = 0
        if serving is not None and serving.adapters is not None:
            for number in {one.number for one in states} - self._labelled:
                names = serving.adapters.labels_of(number)
                if names is None:
                    continue
                own = len(json.dumps(names))
                if labels and size + own > MAX_LABELS_BYTES:
                    frame = write_adapters(Adapters(states=states, labels=labels))
                    self._send(Kind.ADAPTERS, _MODEL_ID, [frame])
                    labels, size = {}, 0
                labels[number] = names
                size += own
                self._labelled.add(number)
        frame = write_adapters(Adapters(states=states, labels=labels))
        self._send(Kind.ADAPTERS, _MODEL_ID, [frame])

    def _join(self) -> None:
        """Join the engine of the version that serves, unless it is joined or there is none."""
        serving = self._service.serving
        engine = None if serving is None else serving.engine
        if self._has_ended or serving is None or engine is None or not self._service.live:
            return
        if any(one.engine is engine for one in self._joined.values()):
            return
        number = next(self._numbers)

        def send(report: StepReport | Refused) -> None:
            if isinstance(report, Refused):
                self._send(Kind.REFUSED, report.id, write_refused(report))
            else:
                self._send(Kind.STEP, number, write_step(report))

        def ended() -> None:
            del self._joined[number]
            self._send(Kind.ENGINE_ENDED, number, [b""])
            # Behind what ends the engine: there may be a new one then.
            self._loop.call_soon(self._join)

        self._joined[number] = _Joined(engine, engine.join(send, ended))
        self._send(Kind.ENGINE, number, [write_engine(serving.served.description.version)])
