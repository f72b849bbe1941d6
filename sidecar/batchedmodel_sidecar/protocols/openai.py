"""OpenAI's embeddings endpoint: text or token ids in, vectors out."""

from __future__ import annotations  # array.array takes no type argument at run time

import base64
import math
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.tensors import Buffer, Datatype, bytes_to_values
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import Whole
from batchedmodel_sidecar.calls import Answer, Row, Value
from batchedmodel_sidecar.errors import CallError, ModelNotFound, refuse_many
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.json_bodies import (
    adapter_of,
    json_object,
    optional_text,
    require_few,
    unable,
    usage,
)
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.rows import rows_of_ids, rows_of_texts

EMBEDDINGS: Final = frozenset({"model", "input", "encoding_format", "dimensions", "user"})


class _Form(NamedTuple):
    """How the vectors are wanted."""

    base64: bool
    dimensions: int | None
    """None: all of them, as the model gives them."""


class EmbeddingsProtocol(PublicProtocol):
    """`POST /v1/embeddings`."""

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """One row for each input; raises `InvalidInput` or `Rejected` (another model's name)."""
        fields = json_object(body, EMBEDDINGS)
        named = adapter_of(fields, model.description.name, named=True)
        if model.description.embedding is None:
            raise unable(named, model.description.name, "does not give embeddings")
        encoding = fields.get("encoding_format") or "float"
        if encoding not in ("float", "base64"):
            raise InvalidInput("encoding_format", "is not one of float, base64", encoding)
        optional_text(fields, "user")
        dimensions = _dimensions(fields.get("dimensions"), model.description)
        rows = await _rows(fields.get("input"), model, most_rows)
        form = _Form(base64=encoding == "base64", dimensions=dimensions)
        return Parsed(call=model.call_of(rows), memo=form, named=named)

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """Vectors in the order of the inputs, and how many tokens they were."""
        form: _Form = parsed.memo
        names = [output.name for output in answer.outputs]
        index = names.index(model.description.embedding or "")
        datatype = answer.outputs[index].datatype
        data = [
            {"object": "embedding", "index": i, "embedding": _vector(value, datatype, form)}
            for i, value in enumerate(answer.column(index))
        ]
        document = {
            "object": "list",
            "data": data,
            "model": parsed.answered_by(model),
            "usage": usage(parsed.call.rows),
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


def about_model(model: ReadyModel, adapter: str | None = None) -> dict[str, Any]:
    """The document of `GET /v1/models/{name}`, which OpenAI's and KServe's clients both read.

    Of the model, or of an adapter of it, whose parent it is.
    """
    base = model.description.name
    name = adapter or base
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "batchedmodel"}
    family = {"root": base, "parent": base if adapter else None}
    return openai | family | {"name": name, "ready": True}


def models(model: ReadyModel, adapters: Sequence[str] = ()) -> dict[str, Any]:
    """The document of `GET /v1/models`, in OpenAI's form and in KServe's: model and adapters."""
    data = [about_model(model), *(about_model(model, name) for name in adapters)]
    return {"object": "list", "data": data, "models": [one["id"] for one in data]}


async def _rows(given: object, model: ReadyModel, most_rows: int) -> tuple[Row, ...]:
    if given is None:
        raise InvalidInput("input", "is required")
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not inputs:
        rule = "is not a text, a list of texts, a list of token ids or a list of such lists"
        raise InvalidInput("input", rule, given)
    if isinstance(inputs[0], int):
        inputs = [inputs]
    require_few(inputs, "input")
    refuse_many(len(inputs), most_rows)
    texts = [one for one in inputs if isinstance(one, str)]
    if len(texts) != len(inputs):
        ids = [_ids(one, f"input[{index}]") for index, one in enumerate(inputs)]
        return rows_of_ids(ids, model.description, "input")
    for index, text in enumerate(texts):
        if not text:
            raise InvalidInput(f"input[{index}]", "is an empty text")
    return await rows_of_texts(texts, model, "input")


def _ids(given: object, field: str) -> array[int]:
    if not isinstance(given, list) or set(map(type, given)) - {int}:
        raise InvalidInput(field, "is not of the same kind as the rest (texts or token ids)", given)
    try:
        return array("q", given)
    except OverflowError as error:
        raise InvalidInput(field, "holds a token id beyond 64 bits") from error


def _dimensions(given: object, description: ModelDescription) -> int | None:
    """How many numbers of each vector are wanted; raises `InvalidInput`."""
    if given is None:
        return None
    output = next(spec for spec in description.outputs if spec.name == description.embedding)
    whole, shortest = output.shape[-1], description.shortest_embedding
    if shortest is None:
        if given == whole and type(given) is int:
            return None
        rule = f"cannot be chosen: this model's embeddings have {whole} and may not be cut"
        raise InvalidInput("dimensions", rule, given)
    dimensions: int = ruled(Whole(minimum=shortest, maximum=whole), given, "dimensions")
    return dimensions


def _vector(value: Value, datatype: Datatype, form: _Form) -> Any:
    if form.base64 and form.dimensions is None and datatype is Datatype.FP32:
        # The clients decode little-endian FP32.
        return base64.b64encode(value.data).decode()
    vector = bytes_to_values(value.data, datatype, "embedding")
    if form.dimensions is not None:
        vector = _cut(vector, form.dimensions)
    return base64.b64encode(array("f", vector).tobytes()).decode() if form.base64 else vector


def _cut(vector: list[float], dimensions: int) -> list[float]:
    """The first numbers, scaled to length 1 as OpenAI documents it, in FP32."""
    vector = vector[:dimensions]
    # A vector of zeros has no direction that could be kept.
    length = math.hypot(*vector) or 1.0
    return array("f", [number / length for number in vector]).tolist()
