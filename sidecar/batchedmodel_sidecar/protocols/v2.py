"""Open Inference Protocol v2 over REST: JSON and binary tensors."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.batch_wire import SHAPES
from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import Values, read_values
from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Shape,
    Tensor,
    rows,
    split_byte_elements,
    values_to_bytes,
)
from batchedmodel_contract.inference.v2 import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    Options,
    read_body,
    read_options,
    to_json,
    write_answer,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.calls import Answer, Row, Value
from batchedmodel_sidecar.codec.rows import rows_of_tensors, rows_of_texts
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Adapter, Body, Parsed
from batchedmodel_sidecar.protocols.headers import PARAMETERS, RequestOptions, options_of_parameters

_SMALL: Final = 16 * 1024
"""Bytes of a body up to which it is worth while to look for its form."""
_DATA: Final = b'"data"'
_NUMBERS: Final = re.compile(rb'"data": ?(\[[][\d\s.,eE+-]*\])')
_LONGEST_FORM: Final = 2048
"""In bytes."""
_MOST_FORMS: Final = 256


class V2Adapter(Adapter):
    """`POST /v2/models/{name}/infer`."""

    def __init__(self) -> None:
        self.forms: Final = Forms()

    def parse_at_once(self, body: bytes, model: ReadyModel) -> Parsed | None:
        """The call in a body of a known form."""
        return self.forms.parsed(body, model) if len(body) <= _SMALL else None

    async def parse(self, body: Buffer, header_length: str | None, model: ReadyModel) -> Parsed:
        """Tensors as the model declares them, or its text input instead of its tokens."""
        formed = header_length is None and isinstance(body, bytes) and len(body) <= _SMALL
        if formed and (known := self.forms.parsed(bytes(body), model)) is not None:
            return known
        head, tensors = read_body(body, header_length, "inputs", orjson.loads)
        outputs = [output.name for output in model.description.outputs]
        declared, given = model.description.params, head.get("parameters")
        taken = PARAMETERS | declared.keys() if declared else PARAMETERS
        output_options = read_options(head, outputs, taken)
        options = options_of_parameters(given)
        params = read_values(given, declared) if declared else None
        text = model.description.text
        if text is not None and len(tensors) == 1 and tensors[0].name == text.name:
            found = await rows_of_texts(_texts(tensors[0]), model, f"inputs.{text.name}")
        else:
            found = rows_of_tensors(tensors, model.description)
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
        head: dict[str, Any] = {
            "model_name": model.description.name,
            "model_version": model.description.version,
        }
        if output_options.id is not None:
            head["id"] = output_options.id
        tensors = answer.tensors()
        if output_options.outputs is None and not output_options.binary:
            # What nearly everybody asks for.
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


def metadata(model: ReadyModel) -> dict[str, Any]:
    """The v2 metadata of the model: the server's, with the text input that the sidecar adds."""
    document = model.description.to_metadata()
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

    def parsed(self, body: bytes, model: ReadyModel) -> Parsed | None:
        """The call in a body of a known form; None if it has none, or its numbers are none.

        Raises `InvalidInput` for numbers that do not fit the form.
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
