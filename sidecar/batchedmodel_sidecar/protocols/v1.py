"""KServe's v1 protocol: a list of instances in, a prediction for each of them out."""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.description import TensorSpec
from batchedmodel_contract.inference.params import Param, Values, read_values
from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Shape,
    Tensor,
    join_byte_elements,
    values_to_bytes,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.json_bodies import json_object, nested
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.rows import rows_of_tensors, rows_of_texts

_FIELDS: Final = frozenset({"instances"})
_PARAMETERS: Final = "parameters"
_MAX_RANK: Final = 16
_BASE64: Final = "b64"


class PredictProtocol(PublicProtocol):
    """`POST /v1/models/{name}:predict`."""

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """One row for each instance, whose sizes may differ where the model's may."""
        known = model.description.params
        fields = json_object(body, _FIELDS | {_PARAMETERS} if known else _FIELDS)
        instances, params = fields.get("instances"), _params(fields.get(_PARAMETERS), known)
        if not isinstance(instances, list) or not instances:
            raise InvalidInput("instances", "must be a list of at least one instance")
        refuse_many(len(instances), most_rows)
        texts = _texts(instances, model)
        if texts is not None:
            rows = await rows_of_texts(texts, model, "instances")
        else:
            # One by one, because their sizes may differ.
            specs = {spec.name: spec for spec in model.description.inputs}
            rows = tuple(
                row
                for index, one in enumerate(instances)
                for row in rows_of_tensors(
                    _tensors(one, specs, f"instances[{index}]"),
                    model.description,
                    f"instances[{index}]",
                )
            )
        return Parsed(call=model.call_of(rows, params), memo=None)

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """A prediction for each instance: the output's value, or an object of several by name."""
        names = [output.name for output in answer.outputs]
        columns = [
            [nested(value, output.datatype, output.name) for value in answer.column(index)]
            for index, output in enumerate(answer.outputs)
        ]
        if len(columns) == 1:
            return Body(data=orjson.dumps({"predictions": columns[0]}))
        predictions = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return Body(data=orjson.dumps({"predictions": predictions}))


def _params(given: object, known: Mapping[str, Param]) -> Values | None:
    """What a request sets for all of its instances; raises `InvalidInput`."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidInput(_PARAMETERS, "is not an object", given)
    for name in given:
        if name not in known:
            rule = f"is not a parameter that is taken here; known: {', '.join(known)}"
            raise InvalidInput(_PARAMETERS, rule, name)
    return read_values(given, known)


def _texts(instances: list[Any], model: ReadyModel) -> list[str] | None:
    """The texts, if all instances are texts for a model that takes text."""
    text = model.description.text
    if text is None:
        return None
    texts = [
        one[text.name] if isinstance(one, dict) and one.keys() == {text.name} else one
        for one in instances
    ]
    return texts if all(isinstance(one, str) for one in texts) else None


def _tensors(instance: object, specs: Mapping[str, TensorSpec], field: str) -> list[Tensor]:
    if not isinstance(instance, dict) or instance.keys() == {_BASE64}:
        if len(specs) != 1:
            rule = f"is not an object with values for {', '.join(specs)}"
            raise InvalidInput(field, rule, instance)
        instance = dict.fromkeys(specs, instance)
    for name in instance:
        if name not in specs:
            rule = f"is not an input of this model; it takes {', '.join(specs)}"
            raise InvalidInput(field, rule, name)
    return [_tensor(value, specs[name], f"{field}.{name}") for name, value in instance.items()]


def _tensor(value: object, spec: TensorSpec, field: str) -> Tensor:
    """One instance's value as a tensor of one row."""
    shape = _shape(value, field)
    if spec.datatype is Datatype.BYTES:
        leaves = _leaves(value, shape, field)
        data = join_byte_elements(_bytes(leaf, field) for leaf in leaves)
    else:
        data = values_to_bytes(value if shape else [value], spec.datatype, shape, field)
    return Tensor(name=spec.name, datatype=spec.datatype, shape=(1, *shape), data=data)


def _shape(value: object, field: str) -> Shape:
    """The shape by the first element of each list; whoever reads the values checks the others."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > _MAX_RANK:
            raise InvalidInput(field, f"is nested more than {_MAX_RANK} deep")
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _leaves(value: object, shape: Shape, field: str) -> list[Any]:
    level: list[Any] = [value]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in level):
            raise InvalidInput(field, f"does not nest as shape {list(shape)}")
        level = list(chain.from_iterable(level))
    return level


def _bytes(leaf: object, field: str) -> bytes:
    """A text, or bytes as `{"b64": ...}`, which is KServe's form."""
    try:
        if isinstance(leaf, str):
            return leaf.encode()
        if isinstance(leaf, dict) and leaf.keys() == {_BASE64} and isinstance(leaf[_BASE64], str):
            return b64decode(leaf[_BASE64], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(field, f"holds a text that cannot be read: {error}") from error
    raise InvalidInput(field, f'holds neither a text nor an object {{"{_BASE64}": text}}', leaf)
