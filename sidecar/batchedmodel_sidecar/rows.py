"""Checks a request's tensors against the model's description and cuts them into rows.

Used by the protocol adapters. A request that does not fit is refused here, alone, before it could
meet anybody else's rows; the model server checks again what only it can know.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import math
from array import array
from collections.abc import Sequence

from batchedmodel_contract.description import RAGGED, ModelDescription, TensorSpec
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.tensors import Tensor, rows
from batchedmodel_sidecar.calls import Row, Value


def rows_of_tensors(tensors: Sequence[Tensor], description: ModelDescription) -> tuple[Row, ...]:
    """The rows of a v2 request; raises `InvalidInput`."""
    given = {tensor.name: tensor for tensor in tensors}
    for index, tensor in enumerate(tensors):
        if all(tensor.name != spec.name for spec in description.inputs):
            known = ", ".join(spec.name for spec in description.inputs)
            rule = f"is not an input of this model; it takes {known}"
            raise InvalidInput(f"inputs[{index}].name", rule, tensor.name)
    missing = [spec.name for spec in description.inputs if spec.name not in given]
    if missing:
        raise InvalidInput("inputs", f"lacks {', '.join(missing)}")
    ordered = [given[spec.name] for spec in description.inputs]
    for tensor, spec in zip(ordered, description.inputs, strict=True):
        _check(tensor, spec)
    if len({tensor.shape[0] for tensor in ordered}) != 1:
        raise InvalidInput("inputs", "disagree about the number of rows (the first dimension)")
    columns = [rows(tensor) for tensor in ordered]
    shapes = [tensor.shape[1:] for tensor in ordered]
    length = max(_length(t, s) for t, s in zip(ordered, description.inputs, strict=True))
    return tuple(
        Row(
            values=tuple(Value(shape, data) for shape, data in zip(shapes, row, strict=True)),
            length=length,
        )
        for row in zip(*columns, strict=True)
    )


def rows_of_tokens(
    token_ids: Sequence[array[int]], description: ModelDescription, field: str
) -> tuple[Row, ...]:
    """One row for each sequence of token ids; raises `InvalidInput` for an empty or long one."""
    spec = description.inputs[0]
    for index, ids in enumerate(token_ids):
        if not ids:
            raise InvalidInput(f"{field}[{index}]", "holds no token")
        if spec.max_length is not None and len(ids) > spec.max_length:
            rule = f"holds {len(ids)} tokens; the model takes {spec.max_length}"
            raise InvalidInput(f"{field}[{index}]", rule)
    return tuple(
        Row(values=(Value((len(ids),), ids.tobytes()),), length=len(ids)) for ids in token_ids
    )


def _check(tensor: Tensor, spec: TensorSpec) -> None:
    field = f"inputs.{tensor.name}"
    if tensor.datatype is not spec.datatype:
        raise InvalidInput(f"{field}.datatype", f"is not {spec.datatype}", tensor.datatype)
    expected = [RAGGED, *spec.shape]
    fits = len(tensor.shape) == len(expected) and all(
        size in (wanted, size if wanted == RAGGED else wanted)
        for size, wanted in zip(tensor.shape, expected, strict=True)
    )
    if not fits:
        rule = f"does not fit {expected} (-1 is any size, the first counts rows)"
        raise InvalidInput(f"{field}.shape", rule, list(tensor.shape))
    if 0 in tensor.shape:
        what = "no rows" if tensor.shape[0] == 0 else "rows of size zero"
        raise InvalidInput(f"{field}.shape", f"has {what}", list(tensor.shape))
    length = _length(tensor, spec)
    if spec.max_length is not None and length > spec.max_length:
        rule = f"is longer than the model takes ({spec.max_length})"
        raise InvalidInput(f"{field}.shape", rule, list(tensor.shape))


def _length(tensor: Tensor, spec: TensorSpec) -> int:
    """Size of the ragged dimensions of one row; 1 where every row has the same size."""
    sizes = zip(tensor.shape[1:], spec.shape, strict=True)
    return math.prod(size for size, wanted in sizes if wanted == RAGGED)
