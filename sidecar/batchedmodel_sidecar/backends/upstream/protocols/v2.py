"""A server of the Open Inference Protocol v2 behind.

Where the server says in its metadata that it speaks the binary extension, rows travel as bytes;
otherwise as JSON. Only callers who want the other form than the server
speaks make the sidecar convert. What has no rows to be told apart (no batch dimension, zero rows,
inputs that disagree) goes alone, as it came.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.params import BINARY_OUTPUT
from batchedmodel_contract.inference.tensors import (
    BINARY_SIZE,
    HEADER_LENGTH,
    Buffer,
    Datatype,
    Tensor,
)
from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_http.response import size_of
from batchedmodel_sidecar.backends.upstream.protocol import (
    Ask,
    BackendProtocol,
    BackendRequest,
    Envelope,
    NotReady,
    ParsedRequest,
    Response,
    SplitReply,
    Subject,
    digest_of,
    estimated_length,
)
from batchedmodel_sidecar.backends.upstream.protocols.json_values import (
    Fields,
    Write,
    object_in,
    object_of,
    read,
    refuse_large,
    refuse_lists,
    spliced,
    texts,
)
from batchedmodel_sidecar.backends.upstream.protocols.v2_rows import (
    MOST_TENSORS,
    Input,
    OutputForm,
    as_bytes,
    as_json,
    columns_of,
    name_of,
    output_of,
)
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.calls import Answer, Output, Row, Value
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.protocols.headers import PARAMETERS, options_of_parameters
from batchedmodel_sidecar.protocols.json_bodies import flag
from batchedmodel_sidecar.protocols.protocol import Body
from batchedmodel_sidecar.protocols.v2 import BINARY, BINARY_EXTENSION, MOST_STRINGS, read_body

_OCTETS: Final = "application/octet-stream"
_ALIGNMENT: Final = 8
_TAKEN_HERE: Final = frozenset({"inputs", "outputs", "parameters", "id"})
_PARAMETERS_HERE: Final = PARAMETERS | {BINARY_OUTPUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What a request says beside its rows."""

    inputs: tuple[Input, ...]
    outputs: str | None
    """JSON text of the array of outputs that are asked for; None: all."""
    parameters: Fields
    rest: Fields
    binary: bool
    """Whether the rows are bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memo:
    """How one caller wants its answer."""

    id: str | None
    """JSON text."""
    binary: bool
    outputs: dict[str, bool]
    """Of outputs that are named."""

    def wants_binary(self, output: str) -> bool:
        return self.outputs.get(output, self.binary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplyFrame:
    """What an answer says beside its rows."""

    head: Fields
    outputs: tuple[OutputForm, ...]


class V2(BackendProtocol):
    """`POST /v2/models/{name}/infer`, with or without `/versions/{version}`."""

    def __init__(self, name: str, replicated: Collection[str] = ()) -> None:
        """`replicated`: outputs that are for a request as a whole, so that each caller gets all."""
        self._name = name
        self._replicated = frozenset(replicated)
        self._model = f"/v2/models/{name}"
        self._binary = False
        self._ranks: dict[str, int] = {}
        """Dimensions of each input that the metadata names."""

    async def check_ready(self, ask: Ask) -> None:
        """The protocol's own question; raises `NotReady`."""
        status, _ = await ask(f"{self._model}/ready")
        if status != 200:
            raise NotReady(f"the model answers {status} to the question for readiness")

    async def describe(self, ask: Ask) -> ModelDescription:
        """The model's metadata, and whether model or server names the binary extension."""
        status, body = await ask(self._model)
        if status != 200:
            raise NotReady(f"the model answers {status} to the question for metadata")
        description = described(self._name, body)
        of_server, server = await ask("/v2")
        documents = [body, server] if of_server == 200 else [body]
        self._binary = any(names_binary(document) for document in documents)
        self._ranks = {spec.name: 1 + len(spec.shape) for spec in description.inputs}
        return description

    def converts(self, size: int, header_length: str | None) -> int:
        """The head, or everything where caller and server do not both speak in bytes."""
        return json_bytes(size, header_length) if self._binary else size

    def parse(
        self, body: Buffer, header_length: str | None, most_rows: int
    ) -> ParsedRequest | None:
        """The rows of all inputs; raises `InvalidInput`."""
        tensors: Sequence[Tensor] | None = None
        if self._binary or header_length is not None:
            most = max(most_rows, MOST_STRINGS)
            _, tensors = read_body(body, header_length, "inputs", most_strings=most)
            body = body[: len(body) if header_length is None else int(header_length)]
        head, write = read(body, of_request=True)
        memo, outputs = _wanted(head, write, as_bytes=self._binary)
        parameters = object_in(head.get("parameters"), "parameters")
        options = options_of_parameters(parameters)
        found = None
        # What is wrong with a tensor of JSON is for the server to say.
        with nullcontext() if tensors is not None else suppress(InvalidInput):
            found = columns_of(
                head.get("inputs"), tensors, self._ranks, most_rows, write, binary=self._binary
            )
        if found is None:
            return None
        inputs, shapes, columns = found
        beside = texts({name: head[name] for name in head if name != "inputs"}, write)
        of_inputs = [((given.name, given.datatype), *given.parameters) for given in inputs]
        refuse_large(chain(beside, *of_inputs))
        kept = {name: parameters[name] for name in parameters if name not in _PARAMETERS_HERE}
        frame = _Frame(
            inputs=inputs,
            outputs=outputs,
            parameters=tuple(sorted(texts(kept, write))),
            rest=tuple(sorted(field for field in beside if field[0] not in _TAKEN_HERE)),
            binary=self._binary,
        )
        drafted = []
        for row in zip(*columns, strict=True):
            values = tuple(Value(shape, data) for shape, data in zip(shapes, row, strict=True))
            length = max(estimated_length(data) for data in row)
            drafted.append(Row(values=values, length=length))
        return ParsedRequest(
            rows=tuple(drafted), frame=frame, shapes=shapes, memo=memo, options=options
        )

    def backend_request(self, rows: Sequence[Row], envelope: Envelope) -> BackendRequest:
        """One request; its answer is wanted in the form in which the rows travel."""
        frame: _Frame = envelope.frame
        data: list[Buffer] = []
        entries = []
        for index, given in enumerate(frame.inputs):
            items = [row.values[index].data for row in rows]
            shape = [len(rows), *rows[0].values[index].shape]
            behind = data if frame.binary else None
            entries.append(_entry(given, shape, items, behind))
        beside = []
        parameters = list(frame.parameters)
        if frame.binary:
            parameters.append((BINARY_OUTPUT, "true"))
        if frame.outputs is not None:
            beside.append(("outputs", frame.outputs))
        if parameters:
            beside.append(("parameters", object_of(parameters)))
        head = spliced("inputs", entries, after=[*beside, *frame.rest])
        headers = envelope.headers
        if data:
            head, length = _aligned(head)
            headers = (*headers, ("Content-Type", _OCTETS), (HEADER_LENGTH, str(length)))
        return BackendRequest(path=envelope.path, headers=headers, parts=[*head, *data])

    def subject(self, envelope: Envelope, row: Row) -> Subject:
        """Digests: path, version, query and outputs; the rest of the request and the row's shapes.

        The metadata of many servers say of every output that it has rows, or nothing of outputs.
        """
        frame: _Frame = envelope.frame
        return Subject(
            asked=digest_of(envelope.path, frame.outputs),
            form=digest_of(envelope.headers, frame, [value.shape for value in row.values]),
        )

    def dealt(self, response: Response, rows: Sequence[Row], *, alone: bool) -> SplitReply:
        """Each output cut into rows; raises `InvalidInput`."""
        end = len(response.body)
        tensors: dict[str, Tensor] = {}
        if response.header_length is not None:
            _, listed = read_body(response.body, response.header_length, "outputs")
            tensors = {tensor.name: tensor for tensor in listed}
            end = int(response.header_length)
        head, write = read(response.body[:end])
        entries = head.pop("outputs", None)
        if not isinstance(entries, list) or not entries:
            raise InvalidInput("outputs", "is empty")
        forms, columns = [], []
        for index, entry in enumerate(entries):
            one, column = output_of(
                entry,
                f"outputs[{index}]",
                len(rows),
                tensors,
                self._replicated,
                write,
                alone=alone,
            )
            forms.append(one)
            if column is not None:
                columns.append(column)
        head.pop("id", None)
        if not alone:
            parameters = object_in(head.get("parameters"), "parameters")
            refuse_lists((name, head[name]) for name in head if name != "parameters")
            refuse_lists((f"parameters.{name}", value) for name, value in parameters.items())
        return SplitReply(
            outputs=tuple(Output(one.name, one.datatype) for one in forms if one.whole is None),
            rows=list(zip(*columns, strict=True)) if columns else [()] * len(rows),
            frame=_ReplyFrame(head=texts(head, write), outputs=tuple(forms)),
        )

    def texts(self, memo: Any, answer: Answer) -> int:
        """The outputs whose form the server speaks and the caller does not want."""
        wanted: _Memo = memo
        return sum(
            size_of([value.data for value in values])
            for output, values in _columns(answer)
            if wanted.wants_binary(output.name) != output.binary
        )

    def render(self, memo: Any, answer: Answer) -> Body:
        """The outputs in the form that the caller wants; raises `InvalidInput`."""
        wanted: _Memo = memo
        reply = _in_common(answer)
        data: list[Buffer] = []
        entries = []
        for output, values in _columns(answer):
            shape = values[0].shape
            if any(value.shape != shape for value in values):
                message = f"outputs.{output.name}: the rows of this request differ in shape"
                raise Unserved(message, status=502)
            whole = [len(values), *shape] if output.whole is None else list(shape)
            items = [value.data for value in values]
            binary = wanted.wants_binary(output.name)
            if binary and not output.binary:
                items = [as_bytes(output, whole, items)]
            elif output.binary and not binary:
                items = [as_json(b"".join(items), output.datatype, f"outputs.{output.name}")]
            elif not binary:
                items = [item for item in items if item]
            entries.append(_entry(output, whole, items, data if binary else None))
        head = list(reply.head)
        if wanted.id is not None:
            head.append(("id", wanted.id))
        text = spliced("outputs", entries, before=head)
        if not data:
            return Body(data=text[0], tail=tuple(text[1:]))
        (first, *rest), length = _aligned(text)
        return Body(
            data=first,
            tail=(*rest, *data),
            content_type=_OCTETS,
            headers=((HEADER_LENGTH, str(length)),),
        )


def _wanted(head: dict[str, Any], write: Write, *, as_bytes: bool) -> tuple[_Memo, str | None]:
    """How the caller wants its answer, and which outputs the server is to be asked for.

    The second is JSON text, which asks for each output in the form that the server speaks.
    """
    identifier = head.get("id")
    if "id" in head and not isinstance(identifier, str):
        raise InvalidInput("id", "is not a string")
    parameters = object_in(head.get("parameters"), "parameters")
    binary = flag(parameters, BINARY_OUTPUT, "parameters.", default=False)
    listed = head.get("outputs", [])
    if not isinstance(listed, list):
        raise InvalidInput("outputs", "is not an array")
    if len(listed) > MOST_TENSORS:
        raise Unbatchable("outputs", f"names more than {MOST_TENSORS}")
    wants: dict[str, bool] = {}
    asked = []
    for index, entry in enumerate(listed):
        field = f"outputs[{index}]"
        if not isinstance(entry, dict):
            raise InvalidInput(field, "is not a JSON object")
        name = name_of(entry, field)
        if entry.keys() - {"name", "parameters"}:
            raise Unbatchable(field, "says more than a name and parameters")
        if name in wants:
            raise InvalidInput(f"{field}.name", "is named twice", name)
        own = dict(object_in(entry.get("parameters"), f"{field}.parameters"))
        wants[name] = flag(own, BINARY, f"{field}.parameters.", default=binary)
        own.pop(BINARY, None)
        if as_bytes:
            own[BINARY] = True
        asked.append({"name": name, "parameters": dict(sorted(own.items()))} if own else entry)
    text = None if identifier is None else write(identifier).decode()
    return _Memo(id=text, binary=binary, outputs=wants), write(asked).decode() if listed else None


def _entry(
    of: Input | OutputForm, shape: Sequence[int], items: list[Buffer], data: list[Buffer] | None
) -> list[Buffer]:
    """One tensor of a body; its items follow as bytes in `data`, if there is one."""
    parameters = list(of.parameters)
    if data is not None:
        data += items
        parameters.append((BINARY_SIZE, str(size_of(items))))
    parts = [
        ("name", _quoted(of.name)),
        ("shape", orjson.dumps(list(shape)).decode()),
        ("datatype", _quoted(of.datatype)),
    ]
    if parameters:
        parts.append(("parameters", object_of(parameters)))
    if data is not None:
        return [object_of(parts).encode()]
    return spliced("data", [(item,) for item in items], before=parts)


def _in_common(answer: Answer) -> _ReplyFrame:
    """What was said of all rows; raises `Unserved` when they were answered differently."""
    reply: _ReplyFrame = answer.replies[0].frame
    if any(other.frame.outputs != reply.outputs for other in answer.replies):
        raise Unserved("the model answered parts of this request differently", status=502)
    return reply


def _columns(answer: Answer) -> Iterator[tuple[OutputForm, Sequence[Value]]]:
    """Each output with its rows, or with the one value that is for all; raises `Unserved`."""
    index = 0
    for output in _in_common(answer).outputs:
        if output.whole is None:
            yield output, answer.column(index)
            index += 1
        else:
            yield output, (output.whole,)


def _aligned(head: list[Buffer]) -> tuple[list[Buffer], int]:
    """A head that bytes may follow, and its length."""
    size = size_of(head)
    padding = b" " * (-size % _ALIGNMENT)
    return [*head, padding], size + len(padding)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def described(name: str, document: bytes) -> ModelDescription:
    """What can be learnt from v2 metadata; raises `InvalidInput` when it cannot be batched."""
    try:
        metadata = orjson.loads(document)
        return ModelDescription(
            name=name,
            version=str((metadata.get("versions") or ["1"])[-1]),
            platform=str(metadata.get("platform", "")),
            # Some servers describe no model unless its author did.
            inputs=tuple(_spec(entry) for entry in metadata.get("inputs") or []),
            outputs=tuple(_spec(entry) for entry in metadata.get("outputs") or []),
            cost_rule=CostRule.ROWS,
        )
    except InvalidInput:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput("metadata", f"is not that of a v2 model: {error!r}") from error


def _spec(entry: Any) -> TensorSpec:
    shape = tuple(int(size) for size in entry["shape"])
    if not shape or shape[0] != RAGGED:
        rule = "has no variable first dimension, so its rows cannot be batched"
        raise InvalidInput(f"metadata of {entry['name']}", rule, list(shape))
    return TensorSpec(name=entry["name"], datatype=Datatype(entry["datatype"]), shape=shape[1:])


def names_binary(document: bytes) -> bool:
    """Whether a model or its server says that it speaks the binary extension."""
    try:
        metadata = orjson.loads(document)
    except orjson.JSONDecodeError:
        return False
    extensions = metadata.get("extensions") if isinstance(metadata, dict) else None
    return isinstance(extensions, list) and BINARY_EXTENSION in extensions
