"""A batch's way through the server: examine, collate, forward, split.

Examining and collating happen on arrival, off the compute thread, so that a batch handed over
early starts right when the one before it ends. What fails is run again in parts, each behind the
batches that were handed over meanwhile.

Rows name adapters by number. Those that are known are lent to the batch, and get slots right before
its pass; more of them than there are slots take several passes. Other rows fail alone.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeVar

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.lora import NO_ADAPTER
from batchedmodel_model_server.api.handler import Handler, Invalid
from batchedmodel_model_server.batching.items import Answered, Collated, Examined, collate, examine
from batchedmodel_model_server.batching.reply import Computed, Failure, Prepared, reply
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, NotReady, translating, words
from batchedmodel_model_server.execution.device_thread import DeviceThread, fit_for_a_future
from batchedmodel_model_server.execution.forward import LoadedModel, forward
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.execution.passes import BatchParts, PartTimes, PassResult, RetryPlan
from batchedmodel_model_server.execution.watchdog import Watchdog, allowed_seconds
from batchedmodel_model_server.lora.serving import GONE, Adapters, Lent
from batchedmodel_scheduling.lora.passes import passes

_BIG: Final = 1 << 20  # bytes whose copying would hold up the event loop for milliseconds
_MANY: Final = 512  # items whose judgement takes as long
_ALLOWED: Final = 1024  # sizes of batches for which it is known how long they may take
_NOT_THERE: Final = 503
_NOTHING_LENT: Final = Lent(weights={})
NOTHING_MISSING: Final[Mapping[int, str]] = {}
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class _Batch(NamedTuple):
    """A batch on its way through its passes, and what has come of them."""

    examined: Examined
    lent: Lent
    computed: Computed
    wanted_until: float
    is_big: bool
    """Whether to put its rows together would hold up the event loop."""


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
        adapters: Adapters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lost` is called on the loop when the device is lost, even if the batch's caller left."""
        self._model = model
        self._compute = compute
        self.expect(profile)
        self._cap = cap
        self._watchdog = watchdog
        self._tell_lost = lost
        self._adapters = adapters
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._lost = ""
        """Why the device is not to be touched any more; the compute thread's."""

    def expect(self, profile: Profile) -> None:
        """Batches take as long as this says, from the next one on."""
        self._part_times = PartTimes(profile)
        self._allowed = lru_cache(_ALLOWED)(partial(allowed_seconds, profile))

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
        if not request.adapters:
            return await self._answered(request, arrived, _NOTHING_LENT)
        wanted = set(request.adapters) - {NO_ADAPTER}
        async with AsyncExitStack() as stack:
            lent = Lent(weights={}, missing=dict.fromkeys(wanted, GONE))
            if self._adapters is not None:
                lent = await stack.enter_async_context(self._adapters.lent(wanted))
            return await self._answered(request, arrived, lent)

    async def _answered(self, request: BatchRequest, arrived: float, lent: Lent) -> BatchReply:
        declaration = self._model.declaration
        received = sum(ragged.size for ragged in request.inputs)
        items = max((len(ragged.shapes) for ragged in request.inputs), default=0)
        is_big = received > _BIG
        takes_long = is_big or items > _MANY or declaration.checks_items
        judge = partial(prepare, self._model, request, lent.missing)
        prepared = await _aside(judge) if takes_long else judge()
        failures = {
            row: Failure(_NOT_THERE, lent.missing[number])
            for row, number in enumerate(request.adapters)
            if number in lent.missing
        }
        computed = Computed(arrived=arrived, failures=failures)
        if prepared.collated is not None:
            wanted = math.inf if request.wanted_seconds is None else request.wanted_seconds
            for examined, whole in self._passes(prepared):
                batch = _Batch(examined, lent, computed, arrived + wanted, is_big)
                await self._run(batch, whole)
        answer = partial(reply, declaration, prepared, computed, self.max_cost)
        return await _aside(answer) if computed.size > _BIG else answer()

    def _passes(self, prepared: Prepared) -> list[tuple[Examined, Collated]]:
        """The valid items, cut where they have more adapters than there are slots."""
        examined, whole = prepared.examined, prepared.collated
        assert whole is not None, "there are valid items"
        if whole.adapters is None or self._adapters is None:
            return [(examined, whole)]
        table = self._adapters.device.table
        groups = passes(whole.adapters.tolist(), table.slots, table.resident)
        if len(groups) == 1:
            return [(examined, whole)]
        parts = [examined.only({whole.items[row] for row in rows}) for rows in groups]
        return [(part, collate(self._model.declaration, part)) for part in parts]

    async def _run(self, batch: _Batch, whole: Collated) -> None:
        """Run the whole, or parts of it, until every item has its own verdict.

        Where a part fails its rows are run again, and those behind it go on.
        """
        left = whole
        while (bound := self._cap.cost) is None or left.rows == 1 or self._cost(left) <= bound:
            # Nearly every batch ends here, without a plan for what nearly never follows.
            only = partial(self._only, batch.examined, left)
            run_pass = partial(self._pass, lent=batch.lent, handed_over=self._clock())
            work = BatchParts(left, only, run_pass, self._part_times)
            await self._compute.divided(work)
            batch.computed.long_rows += work.long_rows
            for part, result in work.done:
                if not isinstance(result.outcome, ForwardFailed):
                    self._cap.fine(self._cost(part))
                    batch.computed.ran(result.began, result.ended)
                    batch.computed.passed += result.outcome
            if (failed := work.failed) is None:
                return
            part, first = failed
            await self._run_again(batch, part, bound, first)
            if work.rows_done == left.rows:
                return
            rest = partial(only, range(work.rows_done, left.rows))
            left = await _aside(rest) if batch.is_big else rest()
        await self._run_again(batch, left, bound)

    def _only(self, examined: Examined, collated: Collated, rows: Sequence[int]) -> Collated:
        items = {collated.items[row] for row in rows}
        return collate(self._model.declaration, examined.only(items))

    def _cost(self, collated: Collated) -> int:
        return collated.cost(self._model.declaration, range(collated.rows))

    async def _run_again(
        self,
        batch: _Batch,
        whole: Collated,
        bound: int | None,
        first: PassResult | None = None,
    ) -> None:
        """Run parts of what failed or does not fit, until every item has its own verdict.

        `first`: the pass over the whole that failed; `bound`: the cap's cost when it began.
        """
        items, computed = whole.items, batch.computed
        only = partial(self._only, batch.examined, whole)
        retry_plan = RetryPlan(
            whole.rows,
            partial(whole.cost, self._model.declaration),
            self._cap,
            bound=bound,
            idempotent=self._model.idempotent,
            wanted_until=batch.wanted_until,
        )
        is_first = True
        try:
            while (rows := retry_plan.next(self._clock())) is not None:
                collated = whole
                if len(rows) < len(items):
                    again = partial(only, rows)
                    collated = await _aside(again) if batch.is_big else again()
                work = partial(self._pass, collated, lent=batch.lent, handed_over=self._clock())
                done = await self._compute.call(work) if first is None else first
                first = None
                computed.ran(done.began, done.ended)
                if not isinstance(done.outcome, ForwardFailed):
                    retry_plan.answered()
                    computed.passed += done.outcome
                    continue
                retry_plan.failed(done.outcome)
                if is_first:
                    told = f"{done.outcome}\n{done.outcome.trace}"
                    _log.error("a batch of %d rows failed: %s", len(rows), told)
                else:
                    _log.info("%d rows of it failed: %s", len(rows), done.outcome)
                is_first = False
        finally:
            # Also when the caller leaves in the middle: the next batch should fit.
            retry_plan.learn()
        computed.failures |= {items[row]: why for row, why in retry_plan.failures.items()}

    def _pass(self, collated: Collated, *, lent: Lent, handed_over: float) -> PassResult:
        """On the compute thread."""
        if self._lost:
            raise NotReady(self._lost)
        longest = self._model.declaration.length_of(collated.largest)
        began = self._clock()
        self._watchdog.pass_begins(self._allowed(collated.rows, longest))
        outcome: list[Answered] | ForwardFailed
        try:
            outcome = forward(self._model, self._placed(collated, lent), handed_over)
        except DeviceLost as error:
            self._lost = str(error)
            self._loop.call_soon_threadsafe(self._tell_lost, error)
            raise
        except ForwardFailed as error:
            # Its frames hold tensors of the pass, whose memory the next one may need.
            outcome = error.with_traceback(None)
        finally:
            self._watchdog.pass_ends()
        return PassResult(outcome=outcome, began=began, ended=self._clock())

    def _placed(self, collated: Collated, lent: Lent) -> Collated:
        """With the slots of its rows' adapters, which are in them from now on."""
        numbers = collated.adapters
        if numbers is None or self._adapters is None:
            return collated
        place = partial(self._adapters.device.slots_of, numbers, lent.weights)
        return collated._replace(adapters=translating(place))


def prepare(
    model: LoadedModel, request: BatchRequest, missing: Mapping[int, str] = NOTHING_MISSING
) -> Prepared:
    """Examine the batch and collate its valid items; raises `InvalidInput`.

    `missing`: adapters that are not there, and why.
    """
    examined = examine(model.declaration, request)
    if missing:
        lacks = {
            row: missing[number] for row, number in enumerate(request.adapters) if number in missing
        }
        examined = replace(examined, faults={**lacks, **examined.faults})
    crashed: Mapping[int, str] = {}
    if model.declaration.checks_items:
        refused, crashed = _check(model.handler, examined)
        examined = replace(examined, faults={**examined.faults, **refused, **crashed})
    collated = collate(model.declaration, examined) if examined.valid else None
    return Prepared(examined=examined, crashed=crashed, collated=collated)


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
