"""A batch's way through the server: examine, collate, forward, split.

Examining and collating happen on arrival, off the compute thread, so that a batch handed over
early starts right when the one before it ends. What fails is run again in parts, each behind the
batches that were handed over meanwhile.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeVar

from batchedmodel_contract.inference.batch_wire import BatchReply, BatchRequest
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_model_server.api.handler import Handler, Invalid
from batchedmodel_model_server.batching.collate import Collated, Output, collate
from batchedmodel_model_server.batching.reply import NOTHING, Computed, Part, Prepared, reply
from batchedmodel_model_server.batching.validation import Examined, examine
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, NotReady
from batchedmodel_model_server.execution.device_thread import DeviceThread, fit_for_a_future
from batchedmodel_model_server.execution.forward import LoadedModel, forward
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.execution.retry_plan import Failure, RetryPlan
from batchedmodel_model_server.execution.torch_errors import words
from batchedmodel_model_server.execution.watchdog import Watchdog, allowed_seconds

_BIG: Final = 1 << 20  # bytes whose copying would hold up the event loop for milliseconds
_MANY: Final = 512  # items whose judgement takes as long
_ALLOWED: Final = 1024  # sizes of batches for which it is known how long they may take
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class _Pass(NamedTuple):
    """What came of one forward pass, and when it ran."""

    outcome: Mapping[str, Output] | ForwardFailed
    began: float
    ended: float


class Runner:
    """Answers batches, one forward pass at a time."""

    def __init__(
        self,
        model: LoadedModel,
        compute: DeviceThread,
        *,
        profile: Profile,
        cap: MemoryCap,
        watchdog: Watchdog,
        lost: Callable[[DeviceLost], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lost` is called on the loop when the device is lost, even if the batch's caller left."""
        self._model = model
        self._compute = compute
        self._allowed = lru_cache(_ALLOWED)(partial(allowed_seconds, profile))
        self._cap = cap
        self._watchdog = watchdog
        self._tell_lost = lost
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._lost = ""
        """Why the device is not to be touched any more; the compute thread's."""

    @property
    def max_cost(self) -> int | None:
        """What the device's memory holds, as far as is known."""
        return self._cap.cost

    async def run(self, request: BatchRequest) -> BatchReply:
        """The batch's answer, each item with its own status.

        Raises `InvalidInput` when the whole batch is not one for this model, `DeviceLost` when the
        device was lost over it, and `NotReady` when that happened before it was begun.
        """
        arrived = self._clock()
        declaration = self._model.declaration
        received = sum(ragged.size for ragged in request.inputs)
        items = max((len(ragged.shapes) for ragged in request.inputs), default=0)
        is_big = received > _BIG
        takes_long = is_big or items > _MANY or declaration.checks_items
        judge = partial(prepare, self._model, request)
        prepared = await _aside(judge) if takes_long else judge()
        computed = NOTHING
        if prepared.collated is not None:
            wanted = math.inf if request.wanted_seconds is None else request.wanted_seconds
            computed = await self._computed(
                prepared.examined, prepared.collated, arrived, arrived + wanted, is_big=is_big
            )
        answer = partial(reply, declaration, prepared, computed, self.max_cost)
        return await _aside(answer) if computed.size > _BIG else answer()

    async def _computed(
        self,
        examined: Examined,
        whole: Collated,
        arrived: float,
        wanted_until: float,
        *,
        is_big: bool,
    ) -> Computed:
        """Run the whole and, if that fails, parts of it until every item has its own verdict."""
        declaration, items = self._model.declaration, whole.items
        cost_of = partial(whole.cost, declaration)
        cost = cost_of(range(whole.rows))
        bound = self._cap.cost
        first: _Pass | None = None
        if whole.rows == 1 or bound is None or cost <= bound:
            # Nearly every batch ends here, without a plan for what nearly never follows.
            first = await self._forward(whole)
            if not isinstance(first.outcome, ForwardFailed):
                self._cap.fine(cost)
                return _computed(
                    [Part(collated=whole, outputs=first.outcome)], {}, [first], arrived
                )
        retry_plan = RetryPlan(
            whole.rows,
            cost_of,
            self._cap,
            bound=bound,
            idempotent=self._model.idempotent,
            wanted_until=wanted_until,
        )
        parts: list[Part] = []
        passes: list[_Pass] = []
        try:
            while (rows := retry_plan.next(self._clock())) is not None:
                collated = whole
                if len(rows) < len(items):
                    again = partial(
                        collate, declaration, examined.only({items[row] for row in rows})
                    )
                    collated = await _aside(again) if is_big else again()
                done = await self._forward(collated) if first is None else first
                first = None
                passes.append(done)
                if not isinstance(done.outcome, ForwardFailed):
                    retry_plan.answered()
                    parts.append(Part(collated=collated, outputs=done.outcome))
                    continue
                retry_plan.failed(done.outcome)
                if len(passes) == 1:
                    told = f"{done.outcome}\n{done.outcome.trace}"
                    _log.error("a batch of %d rows failed: %s", len(rows), told)
                else:
                    _log.info("%d rows of it failed: %s", len(rows), done.outcome)
        finally:
            # Also when the caller leaves in the middle: the next batch should fit.
            retry_plan.learn()
        failures = {items[row]: failure for row, failure in retry_plan.failures.items()}
        return _computed(parts, failures, passes, arrived)

    async def _forward(self, collated: Collated) -> _Pass:
        handed_over = self._clock()
        longest = self._model.declaration.length_of(collated.largest)
        allowed = self._allowed(collated.rows, longest)
        with self._watchdog.awaited():
            return await self._compute.call(lambda: self._pass(collated, handed_over, allowed))

    def _pass(self, collated: Collated, handed_over: float, allowed: float) -> _Pass:
        """On the compute thread."""
        if self._lost:
            raise NotReady(self._lost)
        began = self._clock()
        self._watchdog.pass_begins(allowed)
        outcome: Mapping[str, Output] | ForwardFailed
        try:
            outcome = forward(self._model, collated, handed_over)
        except DeviceLost as error:
            self._lost = str(error)
            self._loop.call_soon_threadsafe(self._tell_lost, error)
            raise
        except ForwardFailed as error:
            # Its frames hold tensors of the pass, whose memory the next one may need.
            outcome = error.with_traceback(None)
        finally:
            self._watchdog.pass_ends()
        return _Pass(outcome=outcome, began=began, ended=self._clock())


def prepare(model: LoadedModel, request: BatchRequest) -> Prepared:
    """Examine the batch and collate its valid items; raises `InvalidInput`."""
    examined = examine(model.declaration, request)
    crashed: Mapping[int, str] = {}
    if model.declaration.checks_items:
        refused, crashed = _check(model.handler, examined)
        examined = replace(examined, faults={**examined.faults, **refused, **crashed})
    collated = collate(model.declaration, examined) if examined.valid else None
    return Prepared(examined=examined, crashed=crashed, collated=collated)


def _computed(
    parts: Sequence[Part], failures: Mapping[int, Failure], passes: Sequence[_Pass], arrived: float
) -> Computed:
    return Computed(
        parts=tuple(parts),
        failures=failures,
        passes=len(passes),
        compute_seconds=sum([done.ended - done.began for done in passes]),
        queue_seconds=passes[0].began - arrived,
    )


async def _aside(work: Callable[[], Result]) -> Result:
    """The result of work that takes longer than handing it to another thread."""

    def done() -> Result:
        try:
            return work()
        except BaseException as error:
            raise fit_for_a_future(error) from error

    return await asyncio.to_thread(done)


def _check(handler: Handler, examined: Examined) -> tuple[dict[int, str], dict[int, str]]:
    """The items that the handler refuses, and those on which its check raised something else."""
    refused: dict[int, str] = {}
    crashed: dict[int, str] = {}
    for index in examined.valid:
        item = {name: column.item(index) for name, column in examined.columns.items()}
        try:
            handler.check(item)
        except Invalid as error:
            refused[index] = words(error, named=False)
        except BaseException as error:
            _log.exception("the handler's check failed")
            crashed[index] = f"the model's check failed: {words(error)}"
    return refused, crashed
