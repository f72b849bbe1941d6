"""A batcher in virtual time in front of a pretend server, for the unit tests of the sidecar."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from batchedmodel_contract.inference.batch_wire import BatchReply, BatchRequest, Ragged
from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import PolicyName
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Outcome, ReleaseReason
from batchedmodel_sidecar.answers import Answer, RawBatch
from batchedmodel_sidecar.backends.base import Infer
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.calls import Call, Row, Value
from batchedmodel_sidecar.errors import CallError, Lost, Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.headers import NO_OPTIONS, RequestOptions
from batchedmodel_sidecar.telemetry.arrivals import RecentArrivals
from batchedmodel_sidecar.telemetry.durations import Durations
from batchedmodel_sidecar.telemetry.ledger import Ledger

FIXED = 0.010
PER_ROW = 0.001

DESCRIPTION = ModelDescription(
    name="m",
    version="1",
    platform="pretend",
    inputs=(TensorSpec(name="x", datatype=Datatype.UINT8, shape=(RAGGED,), max_length=16),),
    outputs=(TensorSpec(name="y", datatype=Datatype.UINT8, shape=(RAGGED,)),),
    cost_rule=CostRule.ROWS,
)
PROFILE = Profile(
    cost_rule=CostRule.ROWS,
    device="pretend",
    points=tuple(
        ProfilePoint(rows=rows, length=1, seconds=FIXED + PER_ROW * rows) for rows in (1, 8, 32)
    ),
)
MODEL = ReadyModel(description=DESCRIPTION, profile=PROFILE, tokens=None, depth=2, rows_pad=True)


class LoopTimer:
    """A `Timer` on the loop's own clock, which the tests make virtual."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, at: float) -> None:
        """Replace the time of the next call."""
        self.close()
        if at != float("inf"):
            self._handle = asyncio.get_running_loop().call_at(at, self._callback)

    def close(self) -> None:
        """Never call again."""
        if self._handle is not None:
            self._handle.cancel()


@dataclass
class PretendServer:
    """Echoes rows after the time of its one device; can be told to fail."""

    batches: list[int] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)
    """Of each batch, those of its rows."""
    rows: list[bytes] = field(default_factory=list)
    wanted: list[float | None] = field(default_factory=list)
    """For how long each batch was."""
    versions: list[str | None] = field(default_factory=list)
    """Of the model, for which each batch was."""
    free_at: float = 0.0
    failure: Unserved | None = None
    statuses: dict[bytes, int] = field(default_factory=dict)
    drop_a_row: bool = False
    deadly: set[bytes] = field(default_factory=set)
    """Rows that kill the server, or the worker that has them."""
    falls_as_one: bool = False
    """Whether a death takes all batches that it has."""
    side_by_side: bool = False
    """Whether each batch has a worker for itself."""
    dropped: int = 0
    """Batches whose connection ended before their answer."""
    fixed: float = FIXED
    per_row: float = PER_ROW
    """Seconds of a batch, and of each of its rows."""
    hand_off: float = 0.0
    """Seconds on the way there."""
    passes: int = 1
    """How many it says that a batch took."""
    _died: asyncio.Event = field(default_factory=asyncio.Event)

    async def infer(self, request: BatchRequest, seconds: float) -> BatchReply:
        """One forward pass; the device takes batches one behind the other."""
        items = [bytes(item) for item in request.inputs[0].items()]
        self.batches.append(len(items))
        self.lengths.append([len(item) for item in items])
        self.rows += items
        self.wanted.append(request.wanted_seconds)
        self.versions.append(request.version)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.hand_off)
        arrived = loop.time()
        starts = arrived if self.side_by_side else max(arrived, self.free_at)
        compute = self.fixed + self.per_row * len(items)
        self.free_at = starts + compute
        try:
            async with asyncio.timeout(seconds):
                await self._at_work(starts + compute - arrived)
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        if self.deadly & set(items):
            if self.falls_as_one:
                self._died.set()
                self._died, self.free_at = asyncio.Event(), 0.0
            raise Lost("the model server went away")
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        answered = items[:-1] if self.drop_a_row else items
        statuses = tuple(self.statuses.get(item, 200) for item in answered)
        kept = [i if s == 200 else b"" for i, s in zip(answered, statuses, strict=True)]
        output = Ragged(
            name="y",
            datatype=Datatype.UINT8,
            shapes=tuple((len(item),) for item in kept),
            parts=(b"".join(kept),),
        )
        return BatchReply(
            outputs=(output,),
            statuses=statuses,
            errors=tuple("" if s == 200 else "refused" for s in statuses),
            compute_seconds=compute,
            queue_seconds=starts - arrived,
            tokens=len(items),
            padded_tokens=len(items),
            passes=self.passes,
        )

    async def _at_work(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._died.wait()
        except TimeoutError:
            return
        raise Lost("the model server went away")


@dataclass
class Seen:
    """What callers and the server see of a batcher, counted without a look into its books."""

    calls: int = 0
    """That came to the batcher."""
    rows: int = 0
    """Of all that came, and one of each that was refused unread."""
    refused: int = 0
    inside: list[int] = field(default_factory=list)
    """The rows of each call that was taken and has not returned."""
    ended: Counter[Outcome] = field(default_factory=Counter)
    """Calls that were taken, by what their callers make of their ends."""
    at_server: list[int] = field(default_factory=list)
    """The rows of each batch that the server has."""


class StrictLedger(Ledger):
    """Books that are compared with what others see whenever they change."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen
        self._left = 0
        self.wrong: list[AssertionError] = []
        """What was found when they changed: a batcher survives what goes wrong in a decision."""

    def leave(self, rows: int, waiting: int) -> None:
        """See `Ledger`."""
        super().leave(rows, waiting)
        self._left += 1

    def pass_on(self) -> None:
        """See `Ledger`; such a call never comes to the batcher."""
        self._seen.calls += 1
        super().pass_on()

    def batch_leaves(self, reason: ReleaseReason, rows: int, now: float) -> None:
        """See `Ledger`."""
        super().batch_leaves(reason, rows, now)
        assert rows == self._left, "a batch holds the rows that have just left"
        self._left = 0

    def check(self) -> None:
        """The accounting identity of the design, and what callers and server say of its parts.

        Both hear of an end a little later than the books.
        """
        seen = self._seen
        assert self.accepted + seen.refused == seen.calls
        assert self.rows_offered == seen.rows
        ongoing = self.waiting + self.in_flight + self.passing
        assert self.accepted == self.settled.total() + ongoing
        assert self.live <= len(seen.inside)
        assert self.rows_waiting <= self.rows_live <= sum(seen.inside)
        assert self.batches_in_flight >= len(seen.at_server)
        assert self.rows_at_model.value >= sum(seen.at_server)
        assert min(self.waiting, self.in_flight, self.passing, self.rows_waiting) >= 0
        assert self.work_live > -1e-9

    def check_at_rest(self) -> None:
        """The same when nothing is under way between the parts, so that all see the same."""
        seen = self._seen
        assert not self.wrong
        self.check()
        assert (self.live, self.rows_live) == (len(seen.inside), sum(seen.inside))
        at_server = (len(seen.at_server), sum(seen.at_server))
        assert (self.batches_in_flight, self.rows_at_model.value) == at_server
        assert self.settled.total() == seen.ended.total()
        # Who leaves while the answer is on its way takes none, whatever the books say.
        assert all(seen.ended[one] <= self.settled[one] for one in {*Outcome} - {Outcome.CANCELLED})


def _strict(change: Callable[..., None]) -> Callable[..., None]:
    def changed(self: StrictLedger, *args: Any, **kwargs: Any) -> None:
        try:
            change(self, *args, **kwargs)
            self.check()
        except AssertionError as error:
            self.wrong.append(error)
            raise

    return changed


for _name, _method in inspect.getmembers(Ledger, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(StrictLedger, _name, _strict(getattr(StrictLedger, _name)))


class WatchedBatcher(Batcher):
    """A batcher at whose door somebody counts."""

    def __init__(self, seen: Seen, settings: BatchSettings, *, infer: Infer, **parts: Any) -> None:
        async def watched(request: BatchRequest, seconds: float) -> BatchReply:
            task = asyncio.current_task()
            if task is not None and task.get_name() == "probe":
                return await infer(request, seconds)  # nobody's batch, and in no book
            if isinstance(request, RawBatch):
                rows = len(request.rows)
            else:
                rows = len([*request.inputs[0].items()])
            seen.at_server.append(rows)
            try:
                return await infer(request, seconds)
            finally:
                seen.at_server.remove(rows)

        super().__init__(settings, infer=watched, **parts)
        self._seen = seen

    def refusal(self, share: Share = NOBODY) -> Rejected | None:
        """See `Batcher`."""
        refusal = super().refusal(share)
        self._seen.rows += refusal is not None
        return refusal

    async def submit(
        self,
        call: Call,
        arrived: float | None = None,
        options: RequestOptions = NO_OPTIONS,
        share: Share = NOBODY,
    ) -> Answer:
        """See `Batcher`."""
        seen, rows = self._seen, len(call.rows)
        seen.calls += 1
        seen.rows += rows
        seen.inside.append(rows)
        try:
            answer = await super().submit(call, arrived, options, share)
        except Rejected:
            seen.refused += 1
            raise
        except asyncio.CancelledError:
            seen.ended[Outcome.CANCELLED] += 1
            raise
        except CallError as error:
            seen.ended[Outcome(str(error.counted_as))] += 1
            raise
        finally:
            seen.inside.remove(rows)
        seen.ended[Outcome.COMPLETED] += 1
        return answer


@dataclass
class World:
    """A batcher with everything around it."""

    batcher: Batcher
    server: PretendServer
    ledger: StrictLedger
    recorder: RecentArrivals
    came: int = 0
    """Callers so far."""

    def send(
        self, *rows: bytes, options: RequestOptions = NO_OPTIONS, tenant: str | None = None
    ) -> "asyncio.Task[Answer]":
        """Submit a call, from a caller of its own unless one is named."""
        self.came += 1
        tenant = str(self.came) if tenant is None else tenant
        return asyncio.create_task(self._answer(call_of(rows), options, tenant))

    async def _answer(self, call: Call, options: RequestOptions, tenant: str) -> Answer:
        try:
            share = self.batcher.settings.tenants.share_of(tenant)
            return await self.batcher.submit(call, options=options, share=share)
        except Rejected as refused:
            # As the front does.
            self.ledger.rejected[refused.reason] += 1
            raise


def call_of(rows: Iterable[bytes]) -> Call:
    """A call whose rows are the given bytes."""
    return Call(
        rows=tuple(Row(values=(Value((len(row),), row),), length=len(row)) for row in rows),
        description=DESCRIPTION,
        key=None,
    )


def rows_of(answer: Answer) -> list[bytes]:
    """The rows of an echoed answer."""
    return [bytes(row[0].data) for row in answer.rows]


def world(
    settings: BatchSettings | None = None, *, attached: bool = True, idempotent: bool = True
) -> World:
    """A world in the running loop's time."""
    server, seen = PretendServer(), Seen()
    ledger = StrictLedger(seen)
    recorder = RecentArrivals(asyncio.get_running_loop().time())
    batcher = WatchedBatcher(
        seen,
        settings or BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4),
        infer=server.infer,
        clock=asyncio.get_running_loop().time,
        timer=LoopTimer,
        ledger=ledger,
        durations=Durations(),
        recorder=recorder,
        idempotent=idempotent,
    )
    if attached:
        batcher.attach(MODEL)
    return World(batcher=batcher, server=server, ledger=ledger, recorder=recorder)
