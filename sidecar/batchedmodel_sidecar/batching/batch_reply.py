"""Cuts the reply to a batch into what each of its rows is answered.

Pure; called by the batcher. A reply that contradicts itself is nobody's answer.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from batchedmodel_contract.inference.batch import OK, BatchReply
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.core.policy import Batch, Finished
from batchedmodel_sidecar.answers import Output
from batchedmodel_sidecar.calls import Value
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.said import Said

Replied = BatchReply | Unserved
"""What becomes of a batch."""

_RETRY_SOON = 1.0
_Member = TypeVar("_Member")


class RowAnswer:
    """One row's outputs."""

    __slots__ = ("said", "values")

    def __init__(self, values: tuple[Value, ...], said: Said | None) -> None:
        """`said`: what an upstream server said with them."""
        self.values: Final = values
        self.said: Final = said


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """The server could not answer this row; others of its batch may have answers."""

    status: int
    message: str
    said: Said | None = None
    """The whole answer of an upstream server, which the row's caller gets as it is."""
    answered: bool = True
    """Whether the server said so; False for words of ours, such as that no time was left."""

    def for_row(self, index: int, rows: int) -> Unserved:
        """The error for the row's call, which has so many rows."""
        where = f"row {index}: " if rows > 1 and self.said is None else ""
        retry_after = _RETRY_SOON if self.status == 503 else None
        return Unserved(
            f"{where}{self.message}",
            status=self.status,
            retry_after=retry_after,
            said=self.said,
            answered=self.answered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply(BatchReply):
    """An upstream server's answer, cut into rows; outputs, statuses and errors are empty."""

    names: tuple[Output, ...]
    answers: tuple[RowAnswer | RowFailure | None, ...]
    """None for a row that had no answer when a fault ended the search for the rows to blame."""
    fault: Unserved | None
    """The error of the rows without an answer, of which none is to blame."""
    refused: int
    """Calls that the server answered with 5xx."""

    @property
    def answered(self) -> bool:
        """Whether any row was."""
        return any(isinstance(answer, RowAnswer) for answer in self.answers)

    def left(self, members: Sequence[_Member]) -> list[_Member]:
        """Those of the batch that have no answer yet."""
        pairs = zip(members, self.answers, strict=True)
        return [member for member, answer in pairs if answer is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UncutReply(BatchReply):
    """An upstream server's large answer to all rows, which another process cuts.

    The server is free meanwhile; outputs, statuses and errors are empty.
    """

    cut: Callable[[], Awaitable[BatchReply]]
    """Called once; raises `Unserved`."""


def refused(reply: BatchReply | Unserved, members: Sequence[_Member]) -> Sequence[_Member]:
    """The members of the batch whose answer is a refusal."""
    if isinstance(reply, Unserved):
        return members
    if isinstance(reply, RawReply):
        good = [not (isinstance(one, RowFailure) and one.answered) for one in reply.answers]
    elif reply.statuses.count(OK) == len(reply.statuses):
        return ()
    else:
        good = [status == OK for status in reply.statuses]
    # Whether there is a status for each row is checked when the reply is dealt.
    return [one for one, is_good in zip(members, good, strict=False) if not is_good]


def is_served(reply: BatchReply) -> bool:
    """Whether every row has its answer."""
    if isinstance(reply, RawReply):
        return reply.fault is None and all(isinstance(one, RowAnswer) for one in reply.answers)
    return reply.statuses.count(OK) == len(reply.statuses)


def finished(batch: Batch, reply: BatchReply | None) -> Finished:
    """The batch's end for the policy, with the seconds that one of its size takes, if known."""
    if reply is None:
        return Finished(batch=batch.id, compute_seconds=None)
    seconds = reply.compute_seconds if reply.passes == 1 else None
    return Finished(batch=batch.id, compute_seconds=seconds, queue_seconds=reply.queue_seconds)


def dealt(
    reply: BatchReply, rows: int
) -> tuple[tuple[Output, ...], list[RowAnswer | RowFailure | None]]:
    """The outputs' names, and for each row its values, its failure or None; raises `Unserved`."""
    if isinstance(reply, RawReply):
        return reply.names, list(reply.answers)
    if len(reply.statuses) != rows:
        message = f"the model answered {len(reply.statuses)} rows to {rows}"
        raise Unserved(message, status=502)
    try:
        columns = [output.items() for output in reply.outputs]
    except InvalidInput as error:
        raise Unserved(f"the model's answer contradicts itself: {error}", status=502) from error
    shapes = [output.shapes for output in reply.outputs]
    answers: list[RowAnswer | RowFailure | None] = []
    for row, status in enumerate(reply.statuses):
        if status == OK:
            pairs = zip(shapes, columns, strict=True)
            values = tuple(Value(shape[row], column[row]) for shape, column in pairs)
            answers.append(RowAnswer(values, None))
        else:
            answers.append(RowFailure(status=status, message=reply.errors[row]))
    return tuple(Output(output.name, output.datatype) for output in reply.outputs), answers
