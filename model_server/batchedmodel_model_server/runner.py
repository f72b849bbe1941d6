"""A batch's way through the server: examine, collate, forward, split.

Examining and collating happen on arrival, off the compute thread, so that a batch handed over
early starts right when the one before it ends. Called by the HTTP edge with parsed batches; knows
nothing of HTTP but the statuses that items travel with.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from batchedmodel_contract.batch_wire import OK, BatchReply, BatchRequest
from batchedmodel_model_server.collate import Collated, Output, collate, no_outputs, split
from batchedmodel_model_server.compute import ComputeThread
from batchedmodel_model_server.declaration import Declaration
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.forward import LoadedModel, forward
from batchedmodel_model_server.handler import Handler, Invalid
from batchedmodel_model_server.validation import Examined, examine

_INVALID: Final = 400
_FAILED: Final = 500
_BIG: Final = 1 << 20  # bytes whose copying would hold up the event loop for milliseconds
_MESSAGE_CHARACTERS: Final = 500
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A batch on its way to the compute thread; `collated` is None when no item is valid."""

    examined: Examined
    crashed: Mapping[int, str]
    """Items on which the handler's own check raised: its fault, not theirs."""
    collated: Collated | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What came of the forward pass: outputs, or the failure of all rows."""

    outputs: Mapping[str, Output]
    failure: str
    began: float
    ended: float


class Runner:
    """Answers batches, one forward pass at a time."""

    def __init__(
        self,
        model: LoadedModel,
        compute: ComputeThread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._compute = compute
        self._clock = clock

    async def run(self, request: BatchRequest) -> BatchReply:
        """The batch's answer, each item with its own status.

        Raises `InvalidInput` when the whole batch is not one for this model.
        """
        arrived = self._clock()
        declaration = self._model.declaration
        received = sum(len(ragged.data) for ragged in request.inputs)
        prepared = await _do(
            lambda: prepare(self._model, request),
            aside=received > _BIG or declaration.checks_items,
        )
        if prepared.collated is None:
            return reply(declaration, prepared, None, arrived)
        computed = await self._forward(prepared.collated)
        produced = sum(output.array.nbytes for output in computed.outputs.values())
        return await _do(
            lambda: reply(declaration, prepared, computed, arrived), aside=produced > _BIG
        )

    async def _forward(self, collated: Collated) -> Computed:
        handed_over = self._clock()

        def work() -> Computed:
            began = self._clock()
            try:
                outputs, failure = forward(self._model, collated, handed_over), ""
            except ForwardFailed as error:
                outputs, failure = {}, str(error)
            return Computed(outputs=outputs, failure=failure, began=began, ended=self._clock())

        return await self._compute.call(work)


def prepare(model: LoadedModel, request: BatchRequest) -> Prepared:
    """Examine the batch and collate its valid items; raises `InvalidInput`."""
    examined = examine(model.declaration, request)
    crashed: Mapping[int, str] = {}
    if model.declaration.checks_items:
        refused, crashed = _check(model.handler, examined)
        examined = replace(examined, faults={**examined.faults, **refused, **crashed})
    collated = collate(model.declaration, examined) if examined.valid else None
    return Prepared(examined=examined, crashed=crashed, collated=collated)


def reply(
    declaration: Declaration, prepared: Prepared, computed: Computed | None, arrived: float
) -> BatchReply:
    """The answer to a batch; `computed` is None when there was nothing to compute."""
    examined, collated = prepared.examined, prepared.collated
    valid, count = examined.valid, examined.count
    if collated is None or computed is None:
        outputs, failed = no_outputs(declaration, count), {}
    elif computed.failure:
        outputs, failed = no_outputs(declaration, count), dict.fromkeys(valid, computed.failure)
    else:
        outputs, failed = split(
            declaration, computed.outputs, collated.sizes, collated.items, count
        )
    statuses, errors = [OK] * count, [""] * count
    for status, faults in (
        (_INVALID, examined.faults),
        (_FAILED, prepared.crashed),
        (_FAILED, failed),
    ):
        for index, fault in faults.items():
            statuses[index], errors[index] = status, fault
    tokens, padded_tokens = _tokens(declaration, collated)
    return BatchReply(
        outputs=outputs,
        statuses=tuple(statuses),
        errors=tuple(errors),
        compute_seconds=computed.ended - computed.began if computed else 0.0,
        queue_seconds=computed.began - arrived if computed else 0.0,
        tokens=tokens,
        padded_tokens=padded_tokens,
    )


async def _do(work: Callable[[], Result], *, aside: bool) -> Result:
    """Small work costs less than handing it to another thread."""
    return await asyncio.to_thread(work) if aside else work()


def _check(handler: Handler, examined: Examined) -> tuple[dict[int, str], dict[int, str]]:
    """The items that the handler refuses, and those on which its check raised something else."""
    refused: dict[int, str] = {}
    crashed: dict[int, str] = {}
    for index in examined.valid:
        item = {name: column.item(index) for name, column in examined.columns.items()}
        try:
            handler.check(item)
        except Invalid as error:
            refused[index] = str(error)[:_MESSAGE_CHARACTERS]
        except Exception as error:
            _log.exception("the handler's check failed")
            text = f"the model's check failed: {type(error).__name__}: {error}"
            crashed[index] = text[:_MESSAGE_CHARACTERS]
    return refused, crashed


def _tokens(declaration: Declaration, collated: Collated | None) -> tuple[int, int]:
    """Tokens in the batch, and tokens that the device was given."""
    if collated is None:
        return 0, 0
    if declaration.length is None:
        return collated.rows, collated.rows
    lengths = collated.sizes[declaration.length]
    tokens = int(lengths.sum())
    return tokens, declaration.padded_tokens(tokens, collated.rows, int(lengths.max()))
