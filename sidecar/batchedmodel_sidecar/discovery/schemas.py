"""What a model's tensors and parameters are, as JSON Schema. Pure."""

from typing import Any, Final

from batchedmodel_contract.inference.batch import SHAPES
from batchedmodel_contract.inference.description import RAGGED, ModelDescription, TensorSpec
from batchedmodel_contract.inference.params import PRIORITY, TIMEOUT, Param
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.inference.v2 import BINARY_OUTPUT

_TYPES: Final = {"BOOL": "boolean", "INT64": "integer", "FP32": "number", "BYTES": "string"}
"""Of parameters."""


def schemas_of(model: ModelDescription) -> dict[str, Any]:
    """The schemas of the OpenAPI document that differ from model to model."""
    inputs = [_tensor(spec) for spec in model.inputs]
    if model.text is not None:
        inputs.append(_tensor(TensorSpec(name=model.text.name, datatype=Datatype.BYTES, shape=())))
    names = [f"{spec.name}{end}" for spec in model.outputs for end in ("", SHAPES)]
    parameters = {name: _parameter(param) for name, param in model.params.items()}
    known: dict[str, Any] = {TIMEOUT: {}, PRIORITY: {}, BINARY_OUTPUT: {}, **parameters}
    closed = {"type": ["object", "null"], "properties": known, "additionalProperties": False}
    return {"Input": {"oneOf": inputs}, "OutputName": {"enum": names}, "Parameters": closed}


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    lettered = {"type": "integer", "minimum": spec.min_length}
    if spec.max_length is not None:
        lettered["maximum"] = spec.max_length
    sizes = [lettered if size == RAGGED else {"const": size} for size in spec.shape]
    # A column of texts has one or two dimensions.
    most = 2 if spec.datatype is Datatype.BYTES else 1 + len(sizes)
    shape = {"prefixItems": [{"minimum": 1}, *sizes], "minItems": 1 + len(sizes), "maxItems": most}
    told = {"name": {"const": spec.name}, "datatype": {"const": spec.datatype}, "shape": shape}
    return {"allOf": [{"$ref": "#/components/schemas/Tensor"}, {"properties": told}]}


def _parameter(param: Param) -> dict[str, Any]:
    rules = {"minimum": param.min, "maximum": param.max, "enum": [*param.choices, None]}
    holds = {name: rule for name, rule in rules.items() if rule not in (None, [None])}
    return {"type": [_TYPES[param.datatype], "null"], "default": param.default, **holds}
