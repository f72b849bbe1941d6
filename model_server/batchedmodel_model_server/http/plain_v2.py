"""Plain v2 requests, as any client of the standard sends them, brought into the batch form.

Rows of a rectangular tensor become items; the answer is rectangular again. A plain request has one
status, so one bad row fails it. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchedmodel_contract.inference.batch_wire import (
    OK,
    SHAPES,
    BatchReply,
    BatchRequest,
    Ragged,
    check_items,
)
from batchedmodel_contract.inference.params import Param, columns, read_values
from batchedmodel_contract.inference.tensors import Tensor
from batchedmodel_contract.invalid_input import InvalidInput


class RowFailed(Exception):
    """A row of a plain request failed, and with it the request."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def is_batch(tensors: Sequence[Tensor]) -> bool:
    """Whether the request speaks the batch extension."""
    return any(tensor.name.endswith(SHAPES) for tensor in tensors)


def rows_as_items(
    tensors: Sequence[Tensor],
    parameters: Mapping[str, Any] | None = None,
    known: Mapping[str, Param] | None = None,
) -> BatchRequest:
    """Each row of the tensors as one item; raises `InvalidInput`.

    What the request's `parameters` set of the `known` ones holds for each of its items.
    """
    inputs = []
    for tensor in tensors:
        if not tensor.shape or tensor.elements == 0:
            # Rows that hold nothing are refused too: a few bytes could claim billions of them.
            rule = "has no rows that hold a value; the first dimension counts rows"
            raise InvalidInput(tensor.name, rule, tensor.shape)
        count, inner = tensor.shape[0], tensor.shape[1:]
        check_items(tensor.name, count)
        inputs.append(
            Ragged(
                name=tensor.name,
                datatype=tensor.datatype,
                shapes=(inner,) * count,
                parts=(tensor.data,),
            )
        )
    values = read_values(parameters, known or {})
    sent = columns([values] * len(inputs[0].shapes), known) if known and values else ()
    return BatchRequest(inputs=tuple(inputs), params=sent)


def items_as_rows(reply: BatchReply, selects: Callable[[str], bool]) -> list[Tensor]:
    """The selected outputs as rectangular tensors; raises `RowFailed`, `InvalidInput`."""
    for row, status in enumerate(reply.statuses):
        if status != OK:
            raise RowFailed(status, f"row {row}: {reply.errors[row]}")
    tensors = []
    for output in reply.outputs:
        if not selects(output.name):
            continue
        if len(set(output.shapes)) > 1:
            rule = "differs in shape from row to row; ask for the rows one by one"
            raise InvalidInput(output.name, rule)
        tensors.append(
            Tensor(
                name=output.name,
                datatype=output.datatype,
                shape=(len(output.shapes), *output.shapes[0]),
                data=output.data,
            )
        )
    return tensors
