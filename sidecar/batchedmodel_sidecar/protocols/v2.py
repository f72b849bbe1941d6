"""Open Inference Protocol v2 over REST: a JSON head and, behind it, binary tensor data.

Layout: https://github.com/kserve/open-inference-protocol and its binary tensor data extension.
"""

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.batch import SHAPES
from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import BINARY_OUTPUT, Values, read_values
from batchedmodel_contract.inference.tensors import (
    BINARY_SIZE,
    HEADER_LENGTH,
    Buffer,
    Datatype,
    Scattered,
    Shape,
    Tensor,
    bytes_to_values,
    check_size,
    contiguous,
    rows,
    split_byte_elements,
    values_to_bytes,
)
from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_sidecar.calls import Answer, Row, Value
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.lora.served import ChosenAdapter
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.headers import (
    PARAMETERS,
    RequestOptions,
    options_of_parameters,
)
from batchedmodel_sidecar.protocols.json_bodies import flag, read_json
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.rows import rows_of_tensors, rows_of_texts

BINARY_EXTENSION: Final = "binary_tensor_data"
"""How a server says in its metadata that it takes and gives binary tensor data."""
BINARY: Final = "binary_data"
"""An output's parameter: whether it is wanted as binary data."""
MOST_STRINGS: Final = 32 * 1024
"""Elements of BYTES tensors in a caller's body, if it may have no more rows: each costs a step."""
_ALIGNMENT: Final = 8
_MAX_RANK: Final = 16
_MAX_TENSORS: Final = 1024
"""Of one body, each of which costs microseconds whatever it holds."""
_MAX_SIZE: Final = 2**63 - 1
_MAX_DIGITS: Final = 18  # of a header length; int() itself refuses some thousands of them
_DATATYPES: Final[dict[str, Datatype]] = {datatype.value: datatype for datatype in Datatype}
_SMALL: Final = 16 * 1024
"""Bytes of a body up to which it is worth while to look for its form."""
_DATA: Final = b'"data"'
_NUMBERS: Final = re.compile(rb'"data": ?(\[[][\d\s.,eE+-]*\])')
_LONGEST_FORM: Final = 2048
"""In bytes."""
_MOST_FORMS: Final = 256


class Options(NamedTuple):
    """What a request says beside its tensors."""

    id: str | None
    """To be given back with the answer."""
    outputs: Mapping[str, bool] | None
    """The wanted outputs, each with whether it is wanted as binary data; None: all outputs."""
    binary: bool
    """Whether the other outputs are wanted as binary data."""

    def selects(self, output: str) -> bool:
        """Whether the output belongs into the answer."""
        return self.outputs is None or output in self.outputs

    def wants_binary(self, output: str) -> bool:
        """Whether the output is wanted as binary data and not as JSON."""
        return self.binary if self.outputs is None else self.outputs.get(output, self.binary)


class V2Protocol(PublicProtocol):
    """`POST /v2/models/{name}/infer`."""

    def __init__(self) -> None:
        self.forms: Final = Forms()

    def parse_at_once(
        self, body: bytes, model: ReadyModel, most_rows: Callable[[], int]
    ) -> Parsed | None:
        """The call in a small body of a known form; None for any other. Raises as `parse` does."""
        return self.forms.parsed(body, model, most_rows) if len(body) <= _SMALL else None

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """Tensors as the model declares them, or its text input instead of its tokens.

        `parse_at_once` comes first where it may.
        """
        formed = header_length is None and isinstance(body, bytes) and len(body) <= _SMALL
        most_strings = max(most_rows, MOST_STRINGS)
        head, tensors = read_body(
            body, header_length, "inputs", unique=True, most_strings=most_strings
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
            return Body(data=_answer_of_one_row(answer, model, parsed.answered_by(model)))
        head: dict[str, Any] = {
            "model_name": parsed.answered_by(model),
            "model_version": model.description.version,
        }
        if output_options.id is not None:
            head["id"] = output_options.id
        # The shapes of a ragged output go with the output that they describe.
        selects, wants_binary = output_options.selects, output_options.wants_binary
        selected = [t for t in answer.tensors() if selects(t.name.removesuffix(SHAPES))]
        length, (data, *tail) = write_answer(
            head, selected, lambda name: wants_binary(name.removesuffix(SHAPES))
        )
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


def read_body(
    body: Buffer,
    header_length: str | None,
    side: str,
    *,
    unique: bool = False,
    most_strings: int = sys.maxsize,
) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """The JSON head and the tensors under `side` (``inputs`` or ``outputs``).

    Without a header length all of it is JSON. `unique`: none of its objects names a field twice.
    `most_strings`: elements of BYTES tensors, each of which is looked at by itself. Raises
    `InvalidInput`.
    """
    head_end = _head_end(body, header_length)
    text = body if head_end == len(body) else memoryview(body)[:head_end]
    head = read_json(text, unique=unique)
    if not isinstance(head, dict):
        raise InvalidInput("body", "is not a JSON object")
    listed = head.get(side)
    if not isinstance(listed, list) or not listed:
        raise InvalidInput(side, "must be a list of at least one tensor")
    if len(listed) > _MAX_TENSORS:
        raise InvalidInput(side, f"lists {len(listed)} tensors; at most {_MAX_TENSORS} are taken")
    tensors, position = [], head_end
    for index, entry in enumerate(listed):
        tensor, position = _tensor(entry, f"{side}[{index}]", body, position, most_strings)
        tensors.append(tensor)
        if tensor.datatype is Datatype.BYTES:
            most_strings -= tensor.elements
    if position != len(body):
        raise InvalidInput("body", f"has {len(body) - position} bytes that no tensor claims")
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        raise InvalidInput(side, "names a tensor twice")
    return head, tuple(tensors)


def read_options(
    head: Mapping[str, Any], known_outputs: Sequence[str], known_parameters: Collection[str]
) -> Options:
    """The options in the JSON head of a request that `read_body` has read; raises `InvalidInput`.

    `known_parameters` are taken beside `BINARY_OUTPUT`. Any other parameter of the request, its
    inputs or its outputs is refused: to ignore it would answer another question.
    """
    identifier = head.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise InvalidInput("id", "is not a string", identifier)
    parameters = _parameters(head, "parameters", {BINARY_OUTPUT, *known_parameters})
    binary = flag(parameters, BINARY_OUTPUT, "parameters.", default=False)
    for index, entry in enumerate(head.get("inputs", ())):
        if "parameters" in entry:
            _parameters(entry, f"inputs[{index}].parameters", {BINARY_SIZE})
    listed = head.get("outputs")
    if listed is None or listed == []:
        return Options(id=identifier, outputs=None, binary=binary)
    if not isinstance(listed, list):
        raise InvalidInput("outputs", "is not a list", listed)
    outputs: dict[str, bool] = {}
    for index, entry in enumerate(listed):
        field = f"outputs[{index}]"
        if not isinstance(entry, dict):
            raise InvalidInput(field, "is not an object", entry)
        name = entry.get("name")
        if not isinstance(name, str) or name not in known_outputs:
            rule = f"is not an output of this model; it has {', '.join(known_outputs)}"
            raise InvalidInput(f"{field}.name", rule, name)
        if name in outputs:
            raise InvalidInput(f"{field}.name", "is named twice", name)
        own = _parameters(entry, f"{field}.parameters", {BINARY})
        outputs[name] = flag(own, BINARY, f"{field}.parameters.", default=binary)
    return Options(id=identifier, outputs=outputs, binary=binary)


def write_answer(
    head: Mapping[str, Any],
    tensors: Sequence[Tensor | Scattered],
    wants_binary: Callable[[str], bool],
) -> tuple[int | None, list[Buffer]]:
    """An answer in which each output, by its name, is binary data or JSON.

    Returns the length of the JSON head and the body's parts. The length is None when nothing is
    binary: the whole body is JSON then and needs no `HEADER_LENGTH`. Raises `InvalidInput` when an
    output that is wanted as JSON has no JSON form.
    """
    entries: list[dict[str, Any]] = []
    data: list[Buffer] = []
    any_binary = False
    for tensor in tensors:
        name, datatype = tensor.name, tensor.datatype
        parts = tensor.parts if isinstance(tensor, Scattered) else (tensor.data,)
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": tensor.shape}
        if wants_binary(name):
            any_binary = True
            entry["parameters"] = {BINARY_SIZE: sum(map(len, parts))}
            data += parts
        else:
            entry["data"] = bytes_to_values(contiguous(parts), datatype, name)
        entries.append(entry)
    text = orjson.dumps({**head, "outputs": entries})
    if data:
        # Tensor data starts on a multiple of eight bytes: it is then read without copying.
        text += b" " * (-len(text) % _ALIGNMENT)
    return len(text) if any_binary else None, [text, *data]


def _parameters(of: Mapping[str, Any], field: str, known: Collection[str]) -> Mapping[str, Any]:
    parameters = of.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidInput(field, "is not an object", parameters)
    for name in parameters:
        if name not in known:
            rule = f"is not a parameter that is taken here; known: {', '.join(sorted(known))}"
            raise Unbatchable(field, rule, name)
    return parameters


def _head_end(body: Buffer, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    is_number = header_length.isascii() and header_length.isdigit()
    if not is_number or len(header_length) > _MAX_DIGITS or int(header_length) > len(body):
        raise InvalidInput(
            HEADER_LENGTH, f"is not a length within the body's {len(body)} bytes", header_length
        )
    return int(header_length)


def _tensor(
    entry: object, field: str, body: Buffer, position: int, most_strings: int
) -> tuple[Tensor, int]:
    if not isinstance(entry, dict):
        raise InvalidInput(field, "is not an object", entry)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{field}.name", "must be a string that is not empty", name)
    datatype, shape = _datatype(entry, field), _shape(entry, field)
    if datatype is Datatype.BYTES and math.prod(shape) > most_strings:
        rule = f"has more elements than the {most_strings} of BYTES that one body may still have"
        raise InvalidInput(f"{field}.shape", rule, list(shape))
    size = _binary_size(entry, field)
    if size is None:
        data: Buffer = values_to_bytes(entry.get("data"), datatype, shape, f"{field}.data")
        return Tensor(name=name, datatype=datatype, shape=shape, data=data), position
    end = position + size
    if end > len(body):
        raise InvalidInput(
            f"{field}.parameters.{BINARY_SIZE}", "leads past the end of the body", size
        )
    tensor = Tensor(name=name, datatype=datatype, shape=shape, data=memoryview(body)[position:end])
    check_size(tensor, field)
    return tensor, end


def _datatype(entry: Mapping[str, Any], field: str) -> Datatype:
    given = entry.get("datatype")
    datatype = _DATATYPES.get(given) if isinstance(given, str) else None
    if datatype is None:
        raise InvalidInput(f"{field}.datatype", f"is not one of {', '.join(Datatype)}", given)
    return datatype


def _shape(entry: Mapping[str, Any], field: str) -> Shape:
    shape = entry.get("shape")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK:
        raise InvalidInput(f"{field}.shape", f"is not an array of at most {_MAX_RANK} sizes", shape)
    for size in shape:
        if type(size) is not int or not 0 <= size <= _MAX_SIZE:
            rule = "has a size that is not an integer from 0 to 2^63 - 1"
            raise InvalidInput(f"{field}.shape", rule, shape)
    return tuple(shape)


def _binary_size(entry: Mapping[str, Any], field: str) -> int | None:
    parameters = entry.get("parameters")
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise InvalidInput(f"{field}.parameters", "is not an object", parameters)
    size = parameters.get(BINARY_SIZE)
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise InvalidInput(f"{field}.parameters.{BINARY_SIZE}", "is not a size in bytes", size)
    if "data" in entry:
        raise InvalidInput(f"{field}.data", f"is given beside {BINARY_SIZE}")
    return size


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
        self._forms: dict[tuple[bytes, bytes], _Form] = {}
        self._of: ModelDescription | None = None

    def __len__(self) -> int:
        return len(self._forms)

    def parsed(self, body: bytes, model: ReadyModel, most_rows: Callable[[], int]) -> Parsed | None:
        """The call in a body of a known form; None if it has none, or its numbers are none.

        Raises `InvalidInput` for numbers that do not fit the form, and `Rejected` for more than
        `most_rows`, which is asked only where there are several.
        """
        if self._of is not model.description:
            self._forms.clear()
            self._of = model.description
        found = _NUMBERS.search(body)
        if found is None:
            return None
        form = self._forms.get((body[: found.start(1)], body[found.end(1) :]))
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
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        self._forms[before, behind] = _Form(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=tensor.shape,
            length=parsed.call.rows[0].length,
            output_options=parsed.memo,
            options=parsed.options,
            params=parsed.call.params,
        )


def _answer_of_one_row(answer: Answer, model: ReadyModel, name: str) -> bytes:
    """All outputs of one row as JSON; raises `InvalidInput` when JSON cannot say it."""
    (row,) = answer.rows
    outputs = [
        {
            "name": output.name,
            "datatype": output.datatype,
            "shape": (1, *value.shape),
            "data": bytes_to_values(value.data, output.datatype, output.name),
        }
        for output, value in zip(answer.outputs, row, strict=True)
    ]
    version = model.description.version
    return orjson.dumps({"model_name": name, "model_version": version, "outputs": outputs})
