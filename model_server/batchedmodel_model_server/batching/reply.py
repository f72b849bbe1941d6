"""The answer to a batch: outputs of one or several passes, and a status for each item. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from batchedmodel_contract.inference.batch import OK, BatchReply
from batchedmodel_model_server.batching.declaration import Declaration
from batchedmodel_model_server.batching.items import Answered, Collated, Examined, split

_INVALID: Final = 400
_FAILED: Final = 500


class Prepared(NamedTuple):
    """A batch on its way to the compute thread; `collated` is None when no item is valid."""

    examined: Examined
    crashed: Mapping[int, str]
    """Items on which the handler's own check raised: its fault, not theirs."""
    collated: Collated | None


class Failure(NamedTuple):
    """What an item without an answer is told."""

    status: int
    error: str


@dataclass(slots=True, kw_only=True)
class Computed:
    """What has come of a batch's passes so far."""

    arrived: float
    """When the batch came, in seconds of the clock that times its passes."""
    passed: list[Answered] = field(default_factory=list)
    failures: dict[int, Failure]
    """By item."""
    passes: int = 0
    compute_seconds: float = 0.0
    queue_seconds: float = 0.0
    long_rows: int = 0
    """Rows that ran alone beside texts, for longer than these had time for."""

    def ran(self, began: float, ended: float) -> None:
        """Count a pass, by the same clock."""
        if not self.passes:
            self.queue_seconds = began - self.arrived
        self.passes += 1
        self.compute_seconds += ended - began

    @property
    def size(self) -> int:
        """Bytes of all outputs."""
        return sum(output.array.nbytes for one in self.passed for output in one.outputs.values())


def reply(
    declaration: Declaration, prepared: Prepared, computed: Computed, max_cost: int | None
) -> BatchReply:
    """The answer to a batch; `max_cost` is what the memory holds, as is known by now."""
    count = prepared.examined.count
    outputs, not_finite = split(declaration, computed.passed, count)
    statuses, errors = [OK] * count, [""] * count
    for status, faults in (
        (_INVALID, prepared.examined.faults),
        (_FAILED, prepared.crashed),
        (_FAILED, not_finite),
    ):
        for index, fault in faults.items():
            statuses[index], errors[index] = status, fault
    for index, failure in computed.failures.items():
        statuses[index], errors[index] = failure
    tokens = padded_tokens = 0
    if (collated := prepared.collated) is not None:
        # As if the device had been given all of the batch at once.
        tokens = sum(collated.lengths)
        longest = declaration.length_of(collated.largest)
        padded_tokens = declaration.padded_tokens(tokens, collated.rows, longest)
    return BatchReply(
        outputs=outputs,
        statuses=tuple(statuses),
        errors=tuple(errors),
        compute_seconds=computed.compute_seconds,
        queue_seconds=computed.queue_seconds,
        tokens=tokens,
        padded_tokens=padded_tokens,
        passes=computed.passes,
        max_cost=max_cost,
        long_rows=computed.long_rows,
    )
