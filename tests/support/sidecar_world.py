"""A batcher in virtual time in front of a pretend server, for the unit tests of the sidecar."""

import asyncio
import importlib
import inspect
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest, Ragged
from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.calls import Answer, Call, Row, Value
from batchedmodel_sidecar.errors import Lost, Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.headers import NO_OPTIONS, RequestOptions
from batchedmodel_sidecar.telemetry.ledger import Durations, Ledger, RecentArrivals

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
    seconds: list[float] = field(default_factory=list)
    """Of each batch, of the device."""
    wanted: list[float | None] = field(default_factory=list)
    """For how long each batch was."""
    versions: list[str | None] = field(default_factory=list)
    """Of the model, for which each batch was."""
    adapters: list[tuple[int, ...]] = field(default_factory=list)
    """Of each batch, those of its rows."""
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
    per_byte: float = 0.0
    """Seconds of each byte of its rows besides, which no profile tells."""
    stalls: dict[bytes, float] = field(default_factory=dict)
    """Rows beside which the device stalls for so many seconds, once."""
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
        self.adapters.append(request.adapters)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # what follows needs a task
        await asyncio.sleep(self.hand_off)
        arrived = loop.time()
        starts = arrived if self.side_by_side else max(arrived, self.free_at)
        compute = self.fixed + self.per_row * len(items) + self.per_byte * sum(map(len, items))
        compute += sum(self.stalls.pop(item, 0.0) for item in items)
        self.free_at = starts + compute
        self.seconds.append(compute)
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


def watched_batcher(settings: BatchSettings, **parts: Any) -> tuple[Batcher, Ledger]:
    """A batcher and its books, which are compared with what others see whenever they change.

    Nothing can inherit from what is compiled, so there they are not: the interpreted form of the
    same tests compares them.
    """
    if not inspect.isfunction(Batcher.offer):
        ledger = Ledger()
        return Batcher(settings, ledger=ledger, **parts), ledger
    strict = importlib.import_module("support.strict_books")
    seen = strict.Seen()
    books: Ledger = strict.StrictLedger(seen)
    batcher: Batcher = strict.WatchedBatcher(seen, settings, ledger=books, **parts)
    return batcher, books


@dataclass
class World:
    """A batcher with everything around it."""

    batcher: Batcher
    server: PretendServer
    ledger: Ledger
    recorder: RecentArrivals
    came: int = 0
    """Callers so far."""

    def send(
        self,
        *rows: bytes,
        options: RequestOptions = NO_OPTIONS,
        tenant: str | None = None,
        key: Hashable = None,
    ) -> "asyncio.Task[Answer]":
        """Submit a call, from a caller of its own unless one is named."""
        self.came += 1
        tenant = str(self.came) if tenant is None else tenant
        return asyncio.create_task(self._answer(call_of(rows, key), options, tenant))

    async def _answer(self, call: Call, options: RequestOptions, tenant: str) -> Answer:
        try:
            share = self.batcher.settings.tenants.share_of(tenant)
            return await self.batcher.offer(call, options=options, share=share)
        except Rejected as refused:
            # As the front does.
            self.ledger.rejected[refused.reason] += 1
            raise


def call_of(rows: Iterable[bytes], key: Hashable = None) -> Call:
    """A call whose rows are the given bytes."""
    return Call(
        rows=tuple(Row(values=(Value((len(row),), row),), length=len(row)) for row in rows),
        description=DESCRIPTION,
        key=key,
    )


async def answered(batcher: Batcher, call: Call, *more: Any) -> Answer:
    """The answer to a call; see `Batcher.offer`."""
    return await batcher.offer(call, *more)


def stats_of(batcher: Batcher) -> SidecarStats:
    """What the autoscaler is told of a batcher in the running loop's time."""
    now, ready = asyncio.get_running_loop().time(), batcher.model is not None
    return batcher.offered.stats(
        batcher.settings, now, batcher.policy, model_ready=ready, draining=False
    )


def rows_of(answer: Answer) -> list[bytes]:
    """The rows of an echoed answer."""
    return [bytes(row[0].data) for row in answer.rows]


def world(
    settings: BatchSettings | None = None, *, attached: bool = True, idempotent: bool = True
) -> World:
    """A world in the running loop's time."""
    server = PretendServer()
    recorder = RecentArrivals(asyncio.get_running_loop().time())
    batcher, ledger = watched_batcher(
        settings or BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4),
        infer=server.infer,
        clock=asyncio.get_running_loop().time,
        timer=LoopTimer,
        durations=Durations(),
        recorder=recorder,
        idempotent=idempotent,
    )
    if attached:
        batcher.attach(MODEL)
    return World(batcher=batcher, server=server, ledger=ledger, recorder=recorder)
