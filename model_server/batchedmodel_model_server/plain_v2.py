"""Plain v2 requests, as any client of the standard sends them, brought into the batch form.

Rows of a rectangular tensor become items; the answer is rectangular again. A plain request has one
status, so one bad row fails it. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchedmodel_contract.batch_wire import OK, SHAPES, BatchReply, BatchRequest, Ragged
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.tensors import Tensor
from batchedmodel_contract.v2 import BINARY, BINARY_OUTPUT


class RowFailed(Exception):
    """A row of a plain request failed, and with it the request."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a plain request wants to be answered."""

    identity: str | None
    outputs: tuple[str, ...]
    """Empty: all of them."""
    binary: bool


def is_batch(tensors: Sequence[Tensor]) -> bool:
    """Whether the request speaks the batch extension."""
    return any(tensor.name.endswith(SHAPES) for tensor in tensors)


def rows_as_items(tensors: Sequence[Tensor]) -> BatchRequest:
    """Each row of the tensors as one item; raises `InvalidInput`."""
    inputs = []
    for tensor in tensors:
        if not tensor.shape or tensor.elements == 0:
            # Rows that hold nothing are refused too: a few bytes could claim billions of them.
            rule = "has no rows that hold a value; the first dimension counts rows"
            raise InvalidInput(tensor.name, rule, tensor.shape)
        count, inner = tensor.shape[0], tensor.shape[1:]
        inputs.append(
            Ragged(
                name=tensor.name,
                datatype=tensor.datatype,
                shapes=(inner,) * count,
                data=tensor.data,
            )
        )
    return BatchRequest(inputs=tuple(inputs))


def wanted(head: Mapping[str, Any], known: Sequence[str]) -> Wanted:
    """What the head of a request asks for; raises `InvalidInput`."""
    identity = head.get("id")
    if identity is not None and not isinstance(identity, str):
        raise InvalidInput("id", "is not a string", identity)
    default = _parameters(head, "parameters").get(BINARY_OUTPUT) is True
    listed = head.get("outputs") or []
    if not isinstance(listed, list):
        raise InvalidInput("outputs", "is not a list", listed)
    names, binary = [], []
    for index, entry in enumerate(listed):
        field = f"outputs[{index}]"
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in known:
            rule = f"is not an output of this model; it gives {', '.join(known)}"
            raise InvalidInput(f"{field}.name", rule, name)
        names.append(name)
        binary.append(_parameters(entry, f"{field}.parameters").get(BINARY, default) is True)
    # JSON is readable by everybody, so a mixture is answered in JSON.
    return Wanted(
        identity=identity, outputs=tuple(names), binary=all(binary) if binary else default
    )


def items_as_rows(reply: BatchReply, outputs: Sequence[str]) -> list[Tensor]:
    """The outputs as rectangular tensors; raises `RowFailed`, `InvalidInput`."""
    for row, status in enumerate(reply.statuses):
        if status != OK:
            raise RowFailed(status, f"row {row}: {reply.errors[row]}")
    tensors = []
    for output in reply.outputs:
        if outputs and output.name not in outputs:
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


def _parameters(of: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    parameters = of.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidInput(field, "is not an object", parameters)
    return parameters
