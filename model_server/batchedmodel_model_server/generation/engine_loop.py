"""Steps of one model's engine on the compute thread, for callers on the event loop.

A turn of the compute thread applies what callers have asked for since the last one, computes one
step and hands what came of it to the event loop. Turns share the device with batches, so that
neither holds up the other. Where nothing is left to do there is no turn.

Callers choose the ids of their requests, each its own. The engine knows a request by a number of
both: the caller's and the id.

A step that raises is computed again without the newest text. Whatever else raises, or a step that
does it again, leaves an engine of unknown state: all callers are hung up on, and a new engine takes
its place. Callers hold every token that came, and send their texts again. Where that does not help
the model counts as lost, and the process ends.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Finish,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import NO_ADAPTER
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, words
from batchedmodel_model_server.generation.engine import Engine, TakenRequest
from batchedmodel_model_server.lora.registry import Kept, Weights
from batchedmodel_model_server.lora.serving import GONE, Adapters
from batchedmodel_model_server.tasks import begun

MOST_FAILURES: Final = 3
"""In a row, without a token between them; no text is sent to more than two of them."""
_ID_BITS: Final = 64
_ID: Final = (1 << _ID_BITS) - 1
_log = logging.getLogger(__name__)


class Rules(NamedTuple):
    """What the loop asks whoever knows the model's life."""

    refusal: Callable[[], str | None]
    """Why no request is taken now; None: they are."""
    at_work: Callable[[], AbstractContextManager[object]]
    """Around the time in which there are requests."""
    lost: Callable[[DeviceLost], None]
    """Called on the event loop when only a new process can go on."""


class Caller(NamedTuple):
    """One of those that the engine works for."""

    number: int
    send: Callable[[StepReport | Refused], None]
    end: Callable[[], None]

    def key(self, request_id: int) -> int:
        """What the engine calls a request of this caller."""
        return self.number << _ID_BITS | request_id


class EngineLoop:
    """The engine of one version of a model. Called on the event loop; only `_turn` is not."""

    def __init__(
        self,
        new_engine: Callable[[], Engine],
        post: Callable[[Callable[[bool], None], float | None], None],
        rules: Rules,
        *,
        adapters: Adapters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`new_engine` makes one without texts, on the compute thread, which does not use the one
        before it any more. `post` has that thread take a turn, from any thread: the turn is told
        whether a batch waits, and with it goes the target between two tokens, if one is set.
        """
        self._new_engine: Final = new_engine
        self._engine: Engine
        """For the compute thread."""
        self._post: Final = post
        self._rules: Final = rules
        self._clock: Final = clock
        self._adapters: Final = adapters
        self._readings: Final[set[asyncio.Task[None]]] = set()
        self._loop: Final = asyncio.get_running_loop()
        self._numbers: Final = count()
        self._callers: Final[dict[int, Caller]] = {}
        self._requests: Final[dict[int, TakenRequest]] = {}
        self._sequences = self._bytes = 0
        self._at_work: Final = ExitStack()
        self._failures = 0
        """Of engines in a row since a token was told."""
        self._has_failed = False
        """Whether the last step did, for a reason of the engine's own; for the compute thread."""
        self._token_seconds: float | None = None
        """Target between two tokens; written by the compute thread."""
        self._lock: Final = threading.Lock()
        # Under the lock:
        self._orders: list[_Order] = []
        self._bounds: Configure | None = None
        """Those that are not in force yet."""
        self._is_spoilt = True
        """Whether the next turn makes a new engine."""
        self._turning = False
        """Whether the compute thread has a turn in work or before it."""

    def join(self, send: Callable[[StepReport | Refused], None], end: Callable[[], None]) -> Caller:
        """A caller comes, and hears at once how the engine is.

        `send` takes what comes of its texts; `end` is called when no more will come.
        """
        caller = Caller(next(self._numbers), send, end)
        self._callers[caller.number] = caller
        self._order()
        return caller

    def leave(self, caller: Caller) -> None:
        """A caller has gone: nothing of what it asked for goes on."""
        if self._callers.pop(caller.number, None) is not None:
            for key in [key for key in self._requests if key >> _ID_BITS == caller.number]:
                self._cancel(key, None)

    def end(self) -> None:
        """Hang up on all callers."""
        for caller in list(self._callers.values()):
            self.leave(caller)
            caller.end()

    def take(self, caller: Caller, frame: Submit | Cancel | Configure) -> None:
        """Do what a caller asks for; raises `InvalidInput` for an id that is taken."""
        match frame:
            case Submit():
                self._submit(caller, frame)
            case Cancel():
                self._cancel(caller.key(frame.id), frame.choice)
            case Configure():
                self._order(frame)

    def _submit(self, caller: Caller, submit: Submit) -> None:
        key = caller.key(submit.id)
        if key in self._requests:
            raise InvalidInput("id", "is that of another request", submit.id)
        request = TakenRequest(submit)
        why = self._rules.refusal() or request.over(self._sequences, self._bytes)
        if why is None and submit.adapter != NO_ADAPTER:
            if self._adapters is not None:
                request.adapter = self._adapters.hold(submit.adapter)
            why = GONE if request.adapter is None else None
        if why is not None:
            caller.send(Refused(id=submit.id, why=Refusal.BUSY, message=why))
            return
        if not self._requests:
            self._at_work.enter_context(self._rules.at_work())
        self._requests[key] = request
        self._sequences += len(request.choices)
        self._bytes += request.bytes
        kept = request.adapter
        if kept is None or kept.weights is not None:
            self._order(replace(submit, id=key), None if kept is None else kept.weights)
            return
        begun(self._read_first(caller, request, kept, submit), self._readings)

    async def _read_first(
        self, caller: Caller, request: TakenRequest, kept: Kept, submit: Submit
    ) -> None:
        """Hand a request to the engine once its adapter is in main memory again."""
        assert self._adapters is not None, "it has lent the adapter"
        key = caller.key(submit.id)
        try:
            weights = await self._adapters.in_memory(kept)
        except CannotLoad as error:
            if self._requests.get(key) is request and not request.leaving:
                message = f"its adapter cannot be read again: {error}"
                caller.send(Refused(id=submit.id, why=Refusal.BUSY, message=message))
                self._forget(key)
            return
        if self._requests.get(key) is request and not request.leaving:
            self._order(replace(submit, id=key), weights)

    def _cancel(self, key: int, choice: int | None) -> None:
        request = self._requests.get(key)
        if request is None or request.leaving:
            return
        if choice is None or request.choices == {choice}:
            # It counts until the compute thread has let go of it.
            request.leaving = True
            self._order(Cancel(id=key))
        elif choice in request.choices:
            self._end_choice(key, request, choice)
            self._order(Cancel(id=key, choice=choice))

    def _end_choice(self, key: int, request: TakenRequest, choice: int) -> None:
        request.choices.remove(choice)
        self._sequences -= 1
        if not request.choices:
            self._forget(key)

    def _forget(self, key: int) -> None:
        request = self._requests.pop(key, None)
        if request is None:
            return
        self._sequences -= len(request.choices)
        self._bytes -= request.bytes
        if request.adapter is not None and self._adapters is not None:
            self._adapters.give_back(request.adapter)
        if not self._requests:
            self._at_work.close()

    def _order(
        self,
        order: Submit | Cancel | Configure | None = None,
        weights: Weights | None = None,
    ) -> None:
        """Have the compute thread apply it, and say how the engine is.

        `weights`: of a text's adapter.
        """
        with self._lock:
            if isinstance(order, Configure):
                # Only the last one matters, however many come.
                self._bounds = order
            elif order is not None:
                self._orders.append(_Order(order, self._clock(), weights))
            if self._turning:
                return
            self._turning = True
        self._post(self._turn, self._token_seconds)

    def _tell(self, turn: "_Turn") -> None:
        try:
            self._tell_callers(turn)
        except Exception as error:
            _log.exception("what came of a turn of the engine could not be told")
            self._fail(error)

    def _tell_callers(self, turn: "_Turn") -> None:
        """Each caller its own part of what came of a turn."""
        parts: dict[int, list[Token]] = {number: [] for number in self._callers}
        for token in turn.report.tokens:
            key, choice = token.id, token.choice
            request = self._requests.get(key)
            if request is None or request.leaving or choice not in request.choices:
                continue  # nobody waits for it any more
            parts[key >> _ID_BITS].append(Token(key & _ID, *token[1:]))
            if token.finish is not Finish.NONE:
                self._end_choice(key, request, choice)
        cached: dict[int, list[tuple[int, int]]] = {number: [] for number in self._callers}
        for key, found in turn.report.cached:
            if key >> _ID_BITS in cached:
                cached[key >> _ID_BITS].append((key & _ID, found))
        for one in turn.refused:
            caller, refused = self._callers.get(one.id >> _ID_BITS), self._requests.get(one.id)
            if caller is not None and refused is not None and not refused.leaving:
                caller.send(replace(one, id=one.id & _ID))
            self._forget(one.id)
        for key in turn.cancelled:
            self._forget(key)
        for number, tokens in parts.items():
            report = replace(turn.report, tokens=tokens, cached=tuple(cached[number]))
            self._callers[number].send(report)
        if any(token.finish is not Finish.FAILED for token in turn.report.tokens):
            self._failures = 0

    def _fail(self, error: BaseException) -> None:
        """Hang up on all callers, who go on at a new engine."""
        with self._lock:
            self._orders, self._bounds, self._is_spoilt = [], None, True
        for key in list(self._requests):
            self._forget(key)
        self.end()
        self._failures += 1
        if self._failures < MOST_FAILURES:
            self._order()
        else:
            self._rules.lost(DeviceLost(f"the engine failed again and again: {words(error)}"))

    # On the compute thread

    def _turn(self, batch_waits: bool) -> None:
        try:
            is_busy = self._turned(batch_waits)
        except DeviceLost as error:
            # Nothing touches the device any more, and the process ends.
            self._loop.call_soon_threadsafe(self._rules.lost, error)
            return
        except BaseException as error:
            _log.exception("the engine failed")
            with self._lock:
                self._is_spoilt, self._turning = True, False
            self._loop.call_soon_threadsafe(self._fail, error)
            return
        with self._lock:
            more = bool(self._orders or self._bounds) or is_busy
            self._turning = more
        if more:
            self._post(self._turn, self._token_seconds)

    def _turned(self, batch_waits: bool) -> bool:
        """Whether the engine has more to do."""
        with self._lock:
            orders, self._orders = self._orders, []
            bounds, self._bounds = self._bounds, None
            is_spoilt, self._is_spoilt = self._is_spoilt, False
        if is_spoilt:
            self._engine, self._has_failed = self._new_engine(), False
            self._token_seconds = None
        if bounds is not None:
            self._engine.configure(bounds)
            self._token_seconds = bounds.token_seconds
        refused, cancelled = [], []
        for order, arrived, weights in orders:
            if isinstance(order, Cancel):
                self._engine.cancel(order.id, order.choice)
                if order.choice is None:
                    cancelled.append(order.id)
            elif (why := self._invalid(order, arrived, weights)) is not None:
                refused.append(Refused(id=order.id, why=Refusal.INVALID, message=why))
        report, ended = self._engine.take(self._stepped(batch_waits))
        turn = _Turn(report, [*refused, *ended], cancelled)
        self._loop.call_soon_threadsafe(self._tell, turn)
        return self._engine.busy

    def _stepped(self, batch_waits: bool) -> float:
        """Compute a step if there is anything in it, and say how long it took."""
        if not self._engine.busy:
            return 0.0
        began = self._clock()
        try:
            self._engine.step(began, batch_waits=batch_waits)
        except DeviceLost:
            raise
        except BaseException:
            if self._has_failed:
                raise
            _log.exception("a step failed for a reason of the engine's own; its newest ends")
            self._engine.begin_anew()
            self._has_failed = True
        else:
            self._has_failed = False
        return self._clock() - began

    def _invalid(self, submit: Submit, arrived: float, weights: Weights | None) -> str | None:
        """Hand a request to the engine; why it can never be served, if so."""
        try:
            self._engine.submit(submit, arrived, weights)
        except InvalidInput as error:
            return str(error)
        except Exception as error:
            _log.exception("a request fails for a reason of the engine's own")
            return f"it cannot be taken: {error!r}"
        return None


class _Order(NamedTuple):
    what: Submit | Cancel
    arrived: float
    weights: Weights | None


class _Turn(NamedTuple):
    """What came of one."""

    report: StepReport
    refused: list[Refused]
    cancelled: list[int]
    """Requests that the engine does not have any more."""
