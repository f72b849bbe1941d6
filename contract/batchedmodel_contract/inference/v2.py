"""Bodies of the Open Inference Protocol v2: a JSON head and, behind it, binary tensor data.

The sidecar reads requests and writes answers with it, the model server the reverse. JSON text is
made and read by the caller (`loads`, `dumps`), so that each process can use its own library.
Layout: https://github.com/kserve/open-inference-protocol and its binary tensor data extension.
"""

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Scattered,
    Shape,
    Tensor,
    bytes_to_values,
    check_size,
    contiguous,
    values_to_bytes,
)
from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
BINARY_EXTENSION: Final = "binary_tensor_data"
"""How a server says in its metadata that it takes and gives binary tensor data."""
BINARY_SIZE: Final = "binary_data_size"
BINARY_OUTPUT: Final = "binary_data_output"
"""A request's parameter: whether outputs are wanted as binary data, unless one says otherwise."""
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

Loads = Callable[[bytes], Any]
Dumps = Callable[[Any], bytes]


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


def read_body(
    body: Buffer,
    header_length: str | None,
    side: str,
    loads: Loads,
    *,
    most_strings: int = sys.maxsize,
) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """The JSON head and the tensors under `side` (``inputs`` or ``outputs``).

    Without a header length the whole body is JSON. `most_strings`: elements of BYTES tensors, each
    of which is looked at by itself. Raises `InvalidInput`.
    """
    head_end = _head_end(body, header_length)
    try:
        head = loads(bytes(body if head_end == len(body) else memoryview(body)[:head_end]))
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput("body", f"is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidInput("body", "is nested too deeply") from error
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
    binary = _flag(parameters, BINARY_OUTPUT, "parameters", default=False)
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
        outputs[name] = _flag(own, BINARY, f"{field}.parameters", default=binary)
    return Options(id=identifier, outputs=outputs, binary=binary)


def write_body(
    head: Mapping[str, Any], tensors: Sequence[Tensor | Scattered], side: str, dumps: Dumps
) -> tuple[int, list[Buffer]]:
    """The length of the JSON head and the body's parts, every tensor as binary data.

    The head is padded so that tensor data starts on a multiple of eight bytes: a receiver may
    then view it as numbers without copying.
    """
    return _write(head, tensors, [True] * len(tensors), side, dumps)


def write_answer(
    head: Mapping[str, Any],
    tensors: Sequence[Tensor | Scattered],
    wants_binary: Callable[[str], bool],
    dumps: Dumps,
) -> tuple[int | None, list[Buffer]]:
    """An answer in which each output, by its name, is binary data or JSON.

    Returns the length of the JSON head and the body's parts. The length is None when nothing is
    binary: the whole body is JSON then and needs no `HEADER_LENGTH`. Raises `InvalidInput` when an
    output that is wanted as JSON has no JSON form.
    """
    binary = [wants_binary(tensor.name) for tensor in tensors]
    length, parts = _write(head, tensors, binary, "outputs", dumps)
    return (length if any(binary) else None), parts


def to_json(tensor: Tensor | Scattered) -> dict[str, Any]:
    """The tensor as an entry of a JSON body, its data flat and row-major.

    Raises `InvalidInput` when JSON cannot say what it holds.
    """
    data = contiguous(_parts(tensor))
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "data": bytes_to_values(data, tensor.datatype, tensor.name),
    }


def _write(
    head: Mapping[str, Any],
    tensors: Sequence[Tensor | Scattered],
    binary: Sequence[bool],
    side: str,
    dumps: Dumps,
) -> tuple[int, list[Buffer]]:
    marked = list(zip(tensors, binary, strict=True))
    listed = [_announced(tensor) if as_data else to_json(tensor) for tensor, as_data in marked]
    data = [part for tensor, as_data in marked if as_data for part in _parts(tensor)]
    text = dumps({**head, side: listed})
    if data:
        text += b" " * (-len(text) % _ALIGNMENT)
    return len(text), [text, *data]


def _parts(tensor: Tensor | Scattered) -> tuple[Buffer, ...]:
    return tensor.parts if isinstance(tensor, Scattered) else (tensor.data,)


def _announced(tensor: Tensor | Scattered) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "parameters": {BINARY_SIZE: sum(map(len, _parts(tensor)))},
    }


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


def _flag(parameters: Mapping[str, Any], name: str, field: str, *, default: bool) -> bool:
    value = parameters.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{field}.{name}", "is not true or false", value)
    return value


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
