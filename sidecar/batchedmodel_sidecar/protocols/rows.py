"""Checks a request's tensors against the model's description and cuts them into rows.

A request that does not fit is refused here, before its rows share a batch with others. The model
server checks again what only it can know.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import sys
from array import array
from collections.abc import Sequence

from batchedmodel_contract.inference.description import RAGGED, ModelDescription, TensorSpec
from batchedmodel_contract.inference.tensors import Tensor, rows
from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_sidecar.calls import Row, Value
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.tokenizer import Text, Tokenised, Tokens


def rows_of_tensors(
    tensors: Sequence[Tensor],
    description: ModelDescription,
    field: str = "inputs",
    *,
    most_rows: int = sys.maxsize,
) -> tuple[Row, ...]:
    """The rows of a request whose `field` holds the tensors.

    Raises `InvalidInput`, and `Rejected` for more than so many rows.
    """
    given = {tensor.name: tensor for tensor in tensors}
    ordered = [given[spec.name] for spec in description.inputs if spec.name in given]
    if len(ordered) != len(tensors) or len(ordered) != len(description.inputs):
        raise _misnamed(tensors, description, field)
    length = 1
    for tensor, spec in zip(ordered, description.inputs, strict=True):
        length = max(length, _checked_length(tensor, spec, f"{field}.{tensor.name}"))
    refuse_many(ordered[0].shape[0], most_rows)
    if len(ordered) == 1:
        shape = ordered[0].shape[1:]
        return tuple(Row(values=(Value(shape, data),), length=length) for data in rows(ordered[0]))
    if len({tensor.shape[0] for tensor in ordered}) != 1:
        raise InvalidInput(field, "disagree about the number of rows (the first dimension)")
    columns = [rows(tensor) for tensor in ordered]
    shapes = [tensor.shape[1:] for tensor in ordered]
    return tuple(
        Row(
            values=tuple(Value(shape, data) for shape, data in zip(shapes, row, strict=True)),
            length=length,
        )
        for row in zip(*columns, strict=True)
    )


def _misnamed(tensors: Sequence[Tensor], description: ModelDescription, field: str) -> InvalidInput:
    """What is wrong with the names of a request's tensors."""
    names = [spec.name for spec in description.inputs]
    for index, tensor in enumerate(tensors):
        if tensor.name not in names:
            rule = f"is not an input of this model; it takes {', '.join(names)}"
            return InvalidInput(f"{field}[{index}].name", rule, tensor.name)
    given = {tensor.name for tensor in tensors}
    return InvalidInput(field, f"lacks {', '.join(name for name in names if name not in given)}")


async def rows_of_texts(
    texts: Sequence[Text], model: ReadyModel, field: str, *, whole: bool = False
) -> tuple[Row, ...]:
    """One row for each text or pair of texts.

    Texts that are too long are cut, unless they must stay `whole`. Raises `InvalidInput`, and
    `Rejected` while too much is being tokenised.
    """
    tokens = tokens_of(model, field)
    return rows_of_tokens(await tokens.encode(texts, whole=whole), model.description, field)


def tokens_of(model: ReadyModel, field: str) -> Tokens:
    """The model's tokenizer, for a `field` that holds text; raises `InvalidInput`."""
    if model.tokens is None:
        raise InvalidInput(field, "is text, but this model has no tokenizer; send token ids")
    return model.tokens


def rows_of_ids(
    token_ids: Sequence[array[int]], description: ModelDescription, field: str
) -> tuple[Row, ...]:
    """One row for each sequence of token ids that a caller sends itself."""
    segmented = description.text is not None and description.text.segments is not None
    zeros = [array("q", bytes(8 * len(ids))) if segmented else None for ids in token_ids]
    pairs = zip(token_ids, zeros, strict=True)
    return rows_of_tokens([Tokenised(*pair) for pair in pairs], description, field)


def rows_of_tokens(
    tokenised: Sequence[Tokenised], description: ModelDescription, field: str
) -> tuple[Row, ...]:
    """One row for each text; raises `InvalidInput` for an empty or long one."""
    spec, order = _token_inputs(description, field)
    for index, one in enumerate(tokenised):
        ids = one.ids
        if not ids:
            raise InvalidInput(f"{field}[{index}]", "holds no token")
        if spec.max_length is not None and len(ids) > spec.max_length:
            rule = f"holds {len(ids)} tokens; the model takes {spec.max_length}"
            raise InvalidInput(f"{field}[{index}]", rule)
    return tuple(
        Row(
            values=tuple(Value((len(one.ids),), _part(one, part).tobytes()) for part in order),
            length=len(one.ids),
        )
        for one in tokenised
    )


def _token_inputs(description: ModelDescription, field: str) -> tuple[TensorSpec, list[int]]:
    """The input that takes token ids, and for each input which part of a text it takes."""
    text = description.text
    parts = {text.tokens: 0, text.segments: 1} if text else {description.inputs[0].name: 0}
    for spec in description.inputs:
        if spec.name not in parts:
            rule = f"is not enough for this model, which takes {spec.name} as well; use v2"
            raise InvalidInput(field, rule)
    order = [parts[spec.name] for spec in description.inputs]
    return description.inputs[order.index(0)], order


def _part(tokenised: Tokenised, index: int) -> array[int]:
    part = tokenised.segments if index else tokenised.ids
    assert part is not None, "segments were not asked for, although the model takes them: our bug"
    return part


def _checked_length(tensor: Tensor, spec: TensorSpec, field: str) -> int:
    """A row's length: the product of its ragged sizes; 1 where no size is ragged."""
    shape = tensor.shape
    if tensor.datatype is not spec.datatype:
        raise InvalidInput(f"{field}.datatype", f"is not {spec.datatype}", tensor.datatype)
    if len(shape) != 1 + len(spec.shape):
        raise Unbatchable(f"{field}.shape", _expected(spec), list(shape))
    length = longest = 1
    for size, wanted in zip(shape[1:], spec.shape, strict=True):
        if wanted == RAGGED:
            length *= size
            longest = max(longest, size)
        elif wanted != size:
            raise InvalidInput(f"{field}.shape", _expected(spec), list(shape))
    if 0 in shape:
        what = "no rows" if shape[0] == 0 else "rows of size zero"
        raise Unbatchable(f"{field}.shape", f"has {what}", list(shape))
    if spec.max_length is not None and longest > spec.max_length:
        rule = f"is longer than the model takes ({spec.max_length})"
        raise InvalidInput(f"{field}.shape", rule, list(shape))
    return length


def _expected(spec: TensorSpec) -> str:
    return f"does not fit {[RAGGED, *spec.shape]} (-1 is any size, the first counts rows)"
