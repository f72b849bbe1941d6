"""Models of each task, as a sidecar has them once they are ready."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from batchedmodel_contract.generation.description import GenerationDescription, StepSeconds
from batchedmodel_contract.inference.description import (
    RAGGED,
    Activation,
    Classification,
    CostRule,
    ModelDescription,
    TensorSpec,
    TextInput,
    description_from_metadata,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_model_server.batching.declaration import declaration_of, describe
from batchedmodel_sidecar.model import ReadyModel
from support.lettered_handlers import Lettered

IDS: Final = TensorSpec(
    name="ids", datatype=Datatype.INT64, shape=(RAGGED,), max_length=64, letters=("L",)
)
TEXTS: Final = ModelDescription(
    name="m",
    version="1",
    platform="pretend",
    inputs=(IDS,),
    outputs=(
        TensorSpec(name="vector", datatype=Datatype.FP32, shape=(4,)),
        TensorSpec(name="scores", datatype=Datatype.FP32, shape=(2,)),
        TensorSpec(name="score", datatype=Datatype.FP32, shape=()),
    ),
    cost_rule=CostRule.PADDED,
    text=TextInput(name="text", tokens="ids", max_tokens=64),
)
CLASSES: Final = Classification(output="scores", labels=("a", "b"), activation=Activation.SOFTMAX)
ENGINE: Final = GenerationDescription(
    vocabulary=300,
    max_context_tokens=64,
    block_tokens=16,
    blocks=4,
    max_sequences=2,
    max_tokens_per_step=64,
    step_seconds=StepSeconds(base=0.1, prefill_token=0.0, sequence=0.0, context_token=0.0),
)
_LETTERED: Final = describe("m", Lettered(), declaration_of(Lettered()))


def ready(
    description: ModelDescription, generation: GenerationDescription | None = None
) -> ReadyModel:
    """A model of this description, which generates so."""
    return ReadyModel(
        description=description,
        profile=None,
        tokens=None,
        generation=generation,
        depth=2,
        rows_pad=True,
    )


MODELS: Final[Mapping[str, ReadyModel]] = {
    "chat": ready(replace(TEXTS, embedding="vector"), replace(ENGINE, chat_template="{{ x }}")),
    "completions": ready(TEXTS, ENGINE),
    "embeddings": ready(replace(TEXTS, embedding="vector")),
    "classification": ready(replace(TEXTS, classification=CLASSES)),
    "ranking": ready(replace(TEXTS, ranking="score")),
    "inference": ready(TEXTS),
    "tensors": ready(description_from_metadata(json.loads(json.dumps(_LETTERED.to_metadata())))),
}
"""By what each is for."""
