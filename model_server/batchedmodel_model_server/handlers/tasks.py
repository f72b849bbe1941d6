"""What a checkpoint of transformers is served as: the one form that all tasks take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchedmodel_contract.inference.description import Classification, TextInput
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.handler import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A loaded model as a handler's declaration, whose fields these are, and its forward pass."""

    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    run: Callable[[Batch], Mapping[str, Any]]
    packs: bool = False
    text: TextInput | None = None
    tokenizer: bytes | None = field(default=None, repr=False)
    embedding: str | None = None
    shortest_embedding: int | None = None
    classification: Classification | None = None
    ranking: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and in what a model computes: names that torch knows."""

    device: str
    dtype: str
