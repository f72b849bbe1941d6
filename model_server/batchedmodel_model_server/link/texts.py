"""The texts of one connection: a caller at each engine, by the number that the sidecar knows."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

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
from batchedmodel_contract.link.model_frames import write_engine
from batchedmodel_model_server.generation.engine_loop import Caller, EngineLoop
from batchedmodel_model_server.lifecycle.service import ModelService

SendFrame = Callable[[Kind, int, Sequence[Buffer]], None]


class _Joined(NamedTuple):
    engine: EngineLoop
    caller: Caller


class Texts:
    """Joins the engines of versions that serve, and carries texts to them and tokens back."""

    def __init__(self, service: ModelService, send: SendFrame) -> None:
        self._service = service
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._joined: dict[int, _Joined] = {}
        self._has_ended = False

    def join(self) -> None:
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
            self._loop.call_soon(self.join)

        self._joined[number] = _Joined(engine, engine.join(send, ended))
        self._send(Kind.ENGINE, number, [write_engine(serving.description.version)])

    def take(self, number: int, frame: Submit | Cancel | Configure) -> None:
        """Hand a frame to the engine of that number; one that has ended needs nothing any more.

        Raises `InvalidInput` for a text whose id is taken.
        """
        joined = self._joined.get(number)
        if joined is not None:
            joined.engine.take(joined.caller, frame)

    def end(self) -> None:
        """Leave all engines."""
        self._has_ended = True
        for engine, caller in self._joined.values():
            engine.leave(caller)
        self._joined.clear()
