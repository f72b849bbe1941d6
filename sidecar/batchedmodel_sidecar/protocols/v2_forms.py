"""Forms of v2 JSON: what a client and a model send again and again with other numbers in it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import Values
from batchedmodel_contract.inference.tensors import (
    Datatype,
    Shape,
    Tensor,
    bytes_to_values,
    rows,
    values_to_bytes,
)
from batchedmodel_contract.inference.v2 import Options
from batchedmodel_sidecar.calls import Answer, Row, Value
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Parsed
from batchedmodel_sidecar.protocols.headers import RequestOptions

_DATA: Final = b'"data"'
_NUMBERS: Final = re.compile(rb'"data": ?(\[[][\d\s.,eE+-]*\])')
_LONGEST_FORM: Final = 2048
"""In bytes."""
_MOST_FORMS: Final = 256


class _Form(NamedTuple):
    name: str
    datatype: Datatype
    shape: Shape
    length: int
    """Of each row."""
    output_options: Options
    options: RequestOptions
    params: Values | None


class Forms:
    """Forms of JSON bodies: of two that differ in one tensor's numbers only, one is read fast.

    A client sends the same text again and again with other numbers in its data. Where a body of the
    same form was understood before, only the numbers are read: what JSON means behind a text
    depends on that text alone. Forms are of one model, bounded, and forgotten as a whole.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], _Form] = {}
        self._of: ModelDescription | None = None

    def __len__(self) -> int:
        return len(self._known)

    def parsed(self, body: bytes, model: ReadyModel, most_rows: Callable[[], int]) -> Parsed | None:
        """The call in a body of a known form; None if it has none, or its numbers are none.

        Raises `InvalidInput` for numbers that do not fit the form, and `Rejected` for more than
        `most_rows`, which is asked only where there are several.
        """
        if self._of is not model.description:
            self._known.clear()
            self._of = model.description
        found = _NUMBERS.search(body)
        if found is None:
            return None
        form = self._known.get((body[: found.start(1)], body[found.end(1) :]))
        if form is None:
            return None
        if form.shape[0] > 1:
            refuse_many(form.shape[0], most_rows())
        try:
            values = orjson.loads(found[1])
        except orjson.JSONDecodeError:
            return None  # its error is told with its place in the whole body
        data = values_to_bytes(values, form.datatype, form.shape, "inputs[0].data")
        each = form.shape[1:]
        if form.shape[0] == 1:
            parts: Sequence[Any] = (data,)
        else:
            parts = rows(
                Tensor(name=form.name, datatype=form.datatype, shape=form.shape, data=data)
            )
        of_rows = tuple([Row(values=(Value(each, part),), length=form.length) for part in parts])
        call = model.call_of(of_rows, form.params)
        return Parsed(call=call, memo=form.output_options, options=form.options)

    def learn(
        self, body: bytes, tensors: Sequence[Tensor], parsed: Parsed, head: Mapping[str, Any]
    ) -> None:
        """Remember the form of a body that was understood, if it is one."""
        tensor, found = tensors[0], _NUMBERS.search(body)
        if found is None or len(tensors) > 1 or tensor.datatype is Datatype.BYTES:
            return
        before, behind = body[: found.start(1)], body[found.end(1) :]
        # The data found must be the tensor's: with two such keys, or with one that is written in
        # escapes, it may be another's.
        if (
            len(before) + len(behind) > _LONGEST_FORM
            or body.count(_DATA) != 1
            or b"\\" in body
            or head["inputs"][0].get("data") != orjson.loads(found[1])
        ):
            return
        if len(self._known) >= _MOST_FORMS:
            self._known.clear()
        self._known[before, behind] = _Form(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=tensor.shape,
            length=parsed.call.rows[0].length,
            output_options=parsed.memo,
            options=parsed.options,
            params=parsed.call.params,
        )


class AnswerForms:
    """Texts around the numbers of answers in JSON: of one model, bounded, forgotten as a whole."""

    def __init__(self) -> None:
        self._heads: dict[str, bytes] = {}
        """By the name of who answers."""
        self._before: dict[tuple[str, Datatype, Shape], bytes] = {}
        """By output and shape of a row."""
        self._of: ModelDescription | None = None

    def body(self, answer: Answer, model: ReadyModel, name: str) -> bytes:
        """The answer to a call of one row; raises `InvalidInput` when JSON cannot say it."""
        if self._of is not model.description:
            self._before.clear()
            self._heads.clear()
            self._of = model.description
        head = self._heads.get(name)
        if head is None:
            if len(self._heads) >= _MOST_FORMS:
                self._heads.clear()
            head = self._heads[name] = head_text(model, name)
        (row,) = answer.rows
        entries = [
            self._text_before(output.name, output.datatype, value.shape)
            + orjson.dumps(bytes_to_values(value.data, output.datatype, output.name))
            for output, value in zip(answer.outputs, row, strict=True)
        ]
        return b"".join((head, b"},".join(entries), b"}]}" if entries else b"]}"))

    def _text_before(self, name: str, datatype: Datatype, shape: Shape) -> bytes:
        known = self._before.get((name, datatype, shape))
        if known is None:
            if len(self._before) >= _MOST_FORMS:
                self._before.clear()
            head = {"name": name, "datatype": datatype, "shape": (1, *shape), "data": []}
            known = self._before[name, datatype, shape] = orjson.dumps(head).removesuffix(b"[]}")
        return known


def head_text(model: ReadyModel, name: str) -> bytes:
    """What an answer in JSON begins with, of who is called so."""
    version = model.description.version
    head = {"model_name": name, "model_version": version, "outputs": []}
    return orjson.dumps(head).removesuffix(b"]}")
