"""Open Inference Protocol v2 over REST: JSON and binary tensors."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.batch import SHAPES
from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import Values, read_values
from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Shape,
    Tensor,
    bytes_to_values,
    rows,
    split_byte_elements,
    values_to_bytes,
)
from batchedmodel_contract.inference.v2 import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    MOST_STRINGS,
    Options,
    read_body,
    read_options,
    to_json,
    write_answer,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.calls import Answer, Row, Value
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.lora.served import ChosenAdapter
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.headers import (
    PARAMETERS,
    RequestOptions,
    options_of_parameters,
)
from batchedmodel_sidecar.protocols.json_bodies import read_json
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.rows import rows_of_tensors, rows_of_texts

_SMALL: Final = 16 * 1024
"""Bytes of a body up to which it is worth while to look for its form."""
_DATA: Final = b'"data"'
_NUMBERS: Final = re.compile(rb'"data": ?(\[[][\d\s.,eE+-]*\])')
_LONGEST_FORM: Final = 2048
"""In bytes."""
_MOST_FORMS: Final = 256


class V2Protocol(PublicProtocol):
    """`POST /v2/models/{name}/infer`."""

    def __init__(self) -> None:
        self.forms: Final = Forms()
        self._answers = AnswerForms()

    def parse_at_once(
        self, body: bytes, model: ReadyModel, most_rows: Callable[[], int]
    ) -> Parsed | None:
        """The call in a small body of a known form; None for any other. Raises as `parse` does."""
        return self.forms.parsed(body, model, most_rows) if len(body) <= _SMALL else None

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """Tensors as the model declares them, or its text input instead of its tokens."""
        formed = header_length is None and isinstance(body, bytes) and len(body) <= _SMALL
        if formed:
            known = self.forms.parsed(bytes(body), model, lambda: most_rows)
            if known is not None:
                return known
        most_strings = max(most_rows, MOST_STRINGS)
        head, tensors = read_body(
            body, header_length, "inputs", read_json, most_strings=most_strings
        )
        outputs = [output.name for output in model.description.outputs]
        declared, given = model.description.params, head.get("parameters")
        taken = PARAMETERS.union(declared) if declared else PARAMETERS
        output_options = read_options(head, outputs, taken)
        options = options_of_parameters(given)
        params = read_values(given, declared) if declared else None
        text = model.description.text
        if text is not None and len(tensors) == 1 and tensors[0].name == text.name:
            refuse_many(tensors[0].elements, most_rows)
            found = await rows_of_texts(_texts(tensors[0]), model, f"inputs.{text.name}")
        else:
            found = rows_of_tensors(tensors, model.description, most_rows=most_rows)
        parsed = Parsed(call=model.call_of(found, params), memo=output_options, options=options)
        if formed:
            self.forms.learn(bytes(body), tensors, parsed, head)
        return parsed

    def texts(self, parsed: Parsed, answer: Answer) -> int:
        """Those outputs that are not wanted as binary data."""
        output_options: Options = parsed.memo
        return sum(
            sum(len(value.data) for value in answer.column(index))
            for index, output in enumerate(answer.outputs)
            if output_options.selects(output.name) and not output_options.wants_binary(output.name)
        )

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The selected outputs, each as JSON or as binary data, as the caller asked for it."""
        output_options: Options = parsed.memo
        as_json = output_options.outputs is None and not output_options.binary
        if as_json and output_options.id is None and len(answer.rows) == 1:
            # What nearly everybody asks for.
            return Body(data=self._answers.body(answer, model, parsed.answered_by(model)))
        head: dict[str, Any] = {
            "model_name": parsed.answered_by(model),
            "model_version": model.description.version,
        }
        if output_options.id is not None:
            head["id"] = output_options.id
        tensors = answer.tensors()
        if as_json:
            head["outputs"] = [to_json(tensor) for tensor in tensors]
            return Body(data=orjson.dumps(head))
        # The shapes of a ragged output go with the output that they describe.
        selected = [t for t in tensors if output_options.selects(t.name.removesuffix(SHAPES))]
        length, parts = write_answer(
            head,
            selected,
            lambda name: output_options.wants_binary(name.removesuffix(SHAPES)),
            orjson.dumps,
        )
        data, *tail = parts
        if length is None:
            return Body(data=data)
        return Body(
            data=data,
            tail=tuple(tail),
            content_type="application/octet-stream",
            headers=((HEADER_LENGTH, str(length)),),
        )


def server_metadata(version: str) -> dict[str, Any]:
    """The v2 metadata of the server, whatever it serves."""
    return {"name": "batchedmodel", "version": version, "extensions": [BINARY_EXTENSION]}


def metadata(model: ReadyModel, adapter: ChosenAdapter | None = None) -> dict[str, Any]:
    """The v2 metadata of the model: the server's, with the text input that the sidecar adds.

    An adapter takes and gives what the model does; labels may be its own.
    """
    description = model.description
    if adapter is not None:
        description = description.of_adapter(adapter.name, adapter.labels)
    document = description.to_metadata()
    text = model.description.text
    if text is not None:
        entry = {"name": text.name, "datatype": Datatype.BYTES, "shape": [-1]}
        document["inputs"] = [entry, *document["inputs"]]
    # The batch extension is spoken inside the pod only.
    document.pop("extensions")
    return document


def _texts(tensor: Tensor) -> list[str]:
    field = f"inputs.{tensor.name}"
    if tensor.datatype is not Datatype.BYTES:
        raise InvalidInput(f"{field}.datatype", f"is not {Datatype.BYTES}", tensor.datatype)
    # [n] and [n, 1] are both in use for a column of texts.
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
        raise InvalidInput(f"{field}.shape", "does not fit [-1] or [-1, 1]", list(tensor.shape))
    if tensor.elements == 0:
        raise InvalidInput(f"{field}.shape", "has no rows", list(tensor.shape))
    try:
        return [str(element, "utf-8") for element in split_byte_elements(tensor.data)]
    except UnicodeDecodeError as error:
        raise InvalidInput(field, "holds a text that is not UTF-8") from error


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
