"""OpenAI's embeddings endpoint: text or token ids in, vectors out."""

from __future__ import annotations  # array.array takes no type argument at run time

import base64
from array import array
from typing import Any, Final, Literal

import orjson

from batchedmodel_contract.mistakes import InvalidInput, shown
from batchedmodel_contract.tensors import Datatype, bytes_to_values
from batchedmodel_sidecar.calls import Answer, Value
from batchedmodel_sidecar.errors import CallError, ModelNotFound
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body, Parsed
from batchedmodel_sidecar.rows import rows_of_tokens

_KNOWN: Final = {"model", "input", "encoding_format", "user"}
_MAX_INPUTS: Final = 2048

Encoding = Literal["float", "base64"]


class EmbeddingsAdapter:
    """`POST /v1/embeddings`."""

    async def parse(self, body: bytes, header_length: str | None, model: ReadyModel) -> Parsed:
        """One row for each input; raises `InvalidInput` or `Rejected` (another model's name)."""
        asked = _object(body)
        if asked.get("model") != model.description.name:
            given, served = shown(asked.get("model")), model.description.name
            message = f"model: {given} is not served here; {served} is"
            raise ModelNotFound(message)
        if model.description.embedding is None:
            raise InvalidInput("model", "does not give embeddings", model.description.name)
        unknown = sorted(asked.keys() - _KNOWN)
        if unknown:
            raise InvalidInput(unknown[0], "is not a parameter that this model takes")
        encoding = asked.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise InvalidInput("encoding_format", "is not one of float, base64", encoding)
        ids = await _token_ids(asked.get("input"), model)
        rows = rows_of_tokens(ids, model.description, "input")
        return Parsed(call=model.call_of(rows), memo=encoding)

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """Vectors in the order of the inputs, and how many tokens they were."""
        encoding: Encoding = parsed.memo
        names = [output.name for output in answer.outputs]
        index = names.index(model.description.embedding or "")
        datatype = answer.outputs[index].datatype
        tokens = sum(row.length for row in parsed.call.rows)
        data = [
            {"object": "embedding", "index": i, "embedding": _vector(value, datatype, encoding)}
            for i, value in enumerate(answer.column(index))
        ]
        document = {
            "object": "list",
            "data": data,
            "model": model.description.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return Body(data=orjson.dumps(document))

    def error(self, error: CallError) -> Body:
        """OpenAI's error object."""
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        document = {
            "message": error.message,
            "type": "rate_limit_error" if error.status == 429 else kind,
            "param": error.field,
            "code": "model_not_found" if isinstance(error, ModelNotFound) else error.counted_as,
        }
        return Body(data=orjson.dumps({"error": document}))


def models(model: ReadyModel) -> dict[str, Any]:
    """The document of `GET /v1/models`."""
    name = model.description.name
    entry = {"id": name, "object": "model", "created": 0, "owned_by": "batchedmodel"}
    return {"object": "list", "data": [entry]}


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput("body", f"is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise InvalidInput("body", "is not a JSON object")
    return asked


async def _token_ids(given: object, model: ReadyModel) -> list[array[int]]:
    if given is None:
        raise InvalidInput("input", "is required")
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not inputs:
        rule = "is not a text, a list of texts, a list of token ids or a list of such lists"
        raise InvalidInput("input", rule, given)
    if isinstance(inputs[0], int):
        inputs = [inputs]
    if len(inputs) > _MAX_INPUTS:
        raise InvalidInput("input", f"has {len(inputs)} entries; at most {_MAX_INPUTS} are taken")
    texts = [one for one in inputs if isinstance(one, str)]
    if len(texts) == len(inputs):
        return await _tokenised(texts, model)
    return [_ids(one, f"input[{index}]") for index, one in enumerate(inputs)]


async def _tokenised(texts: list[str], model: ReadyModel) -> list[array[int]]:
    for index, text in enumerate(texts):
        if not text:
            raise InvalidInput(f"input[{index}]", "is an empty text")
    if model.tokens is None:
        raise InvalidInput("input", "is text, but this model has no tokenizer; send token ids")
    return await model.tokens.encode(texts)


def _ids(given: object, field: str) -> array[int]:
    if not isinstance(given, list) or set(map(type, given)) - {int}:
        raise InvalidInput(field, "is not of the same kind as the rest (texts or token ids)", given)
    try:
        return array("q", given)
    except OverflowError as error:
        raise InvalidInput(field, "holds a token id beyond 64 bits") from error


def _vector(value: Value, datatype: Datatype, encoding: Encoding) -> Any:
    if encoding == "base64":
        # Little-endian FP32, which is what the clients decode.
        return base64.b64encode(value.data).decode()
    return bytes_to_values(value.data, datatype)
