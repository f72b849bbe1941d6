"""What a v2 server says of itself and of its model, as far as it matters here. Pure."""

from typing import Any

import orjson

from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.inference.v2 import BINARY_EXTENSION
from batchedmodel_contract.invalid_input import InvalidInput


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
