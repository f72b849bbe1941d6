"""Open Inference Protocol v2 over REST: JSON and binary tensors."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.tensors import Datatype, Tensor, split_byte_elements
from batchedmodel_contract.v2 import (
    BINARY,
    BINARY_OUTPUT,
    HEADER_LENGTH,
    read_body,
    to_json,
    write_body,
)
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body, Parsed
from batchedmodel_sidecar.rows import rows_of_tensors, rows_of_tokens

_KNOWN_PARAMETERS: Final = {BINARY_OUTPUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memo:
    """What the caller wants to see in the answer."""

    id: str | None
    binary: bool
    outputs: dict[str, bool] | None
    """Selected outputs, each with whether it is wanted as binary data; None selects all."""


class V2Adapter:
    """`POST /v2/models/{name}/infer`."""

    async def parse(self, body: bytes, header_length: str | None, model: ReadyModel) -> Parsed:
        """Tensors as the model declares them, or its text input instead of its tokens."""
        head, tensors = read_body(body, header_length, "inputs", orjson.loads)
        memo = _memo(head, model)
        text = model.description.text
        if text is not None and len(tensors) == 1 and tensors[0].name == text.name:
            assert model.tokens is not None, "a model that takes text has a tokenizer: our bug"
            ids = await model.tokens.encode(_texts(tensors[0]))
            rows = rows_of_tokens(ids, model.description, f"inputs.{text.name}")
        else:
            rows = rows_of_tensors(tensors, model.description)
        return Parsed(call=model.call_of(rows), memo=memo)

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """JSON, with the outputs that were asked for as binary data behind it."""
        memo: _Memo = parsed.memo
        head: dict[str, Any] = {
            "model_name": model.description.name,
            "model_version": model.description.version,
        }
        if memo.id is not None:
            head["id"] = memo.id
        tensors = [t for t in answer.tensors() if memo.outputs is None or _wanted(t, memo.outputs)]
        wants = memo.outputs or {}
        if not any(wants.get(tensor.name, memo.binary) for tensor in tensors):
            head["outputs"] = [to_json(tensor) for tensor in tensors]
            return Body(data=orjson.dumps(head))
        length, parts = write_body(head, tensors, "outputs", orjson.dumps)
        return Body(
            data=b"".join(parts),
            content_type="application/octet-stream",
            headers=((HEADER_LENGTH, str(length)),),
        )

    def error(self, error: CallError) -> Body:
        """`{"error": text}`: the protocol has nothing finer."""
        return Body(data=orjson.dumps({"error": error.message}))


def metadata(model: ReadyModel) -> dict[str, Any]:
    """The public metadata: what the server says, and the text input that the sidecar adds."""
    document = model.description.to_metadata()
    text = model.description.text
    if text is not None:
        entry = {"name": text.name, "datatype": Datatype.BYTES, "shape": [-1]}
        document["inputs"] = [entry, *document["inputs"]]
    # The batch extension is spoken inside the pod only.
    document.pop("extensions")
    return document


def _memo(head: dict[str, Any], model: ReadyModel) -> _Memo:
    identifier = head.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise InvalidInput("id", "is not a string", identifier)
    parameters = _parameters(head, "parameters")
    unknown = sorted(parameters.keys() - _KNOWN_PARAMETERS)
    if unknown:
        raise InvalidInput(f"parameters.{unknown[0]}", "is not a parameter that this model takes")
    binary = _flag(parameters, BINARY_OUTPUT, "parameters", default=False)
    return _Memo(id=identifier, binary=binary, outputs=_selection(head, binary, model))


def _selection(head: dict[str, Any], binary: bool, model: ReadyModel) -> dict[str, bool] | None:
    listed = head.get("outputs")
    if listed is None or listed == []:
        return None
    if not isinstance(listed, list):
        raise InvalidInput("outputs", "is not a list", listed)
    known = {output.name for output in model.description.outputs}
    selected: dict[str, bool] = {}
    for index, entry in enumerate(listed):
        field = f"outputs[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InvalidInput(field, "is not an object with a name", entry)
        if entry["name"] not in known:
            rule = f"is not an output of this model; it has {', '.join(sorted(known))}"
            raise InvalidInput(f"{field}.name", rule, entry["name"])
        selected[entry["name"]] = _flag(
            _parameters(entry, f"{field}.parameters"), BINARY, f"{field}.parameters", default=binary
        )
    return selected


def _parameters(holder: dict[str, Any], field: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidInput(field, "is not an object", parameters)
    return parameters


def _flag(parameters: dict[str, Any], name: str, field: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"{field}.{name}", "is not true or false", value)
    return value


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


def _wanted(tensor: Tensor, selected: dict[str, bool]) -> bool:
    return tensor.name.split(":")[0] in selected
