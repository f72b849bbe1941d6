"""The description of a model as v2 metadata."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from batchedmodel_contract.invalid_input import InvalidInput
from support.examples import examples
from support.strategies import json_values

ENCODER = ModelDescription(
    name="minilm",
    version="1",
    platform="pytorch",
    inputs=(
        TensorSpec(name="input_ids", datatype=Datatype.INT64, shape=(RAGGED,), max_length=256),
    ),
    outputs=(TensorSpec(name="embedding", datatype=Datatype.FP32, shape=(384,)),),
    cost_rule=CostRule.PADDED,
    text=TextInput(name="text", tokens="input_ids", max_tokens=256),
    embedding="embedding",
)
VISION = ModelDescription(
    name="vision",
    version="2",
    platform="pytorch",
    inputs=(TensorSpec(name="image", datatype=Datatype.UINT8, shape=(3, 224, 224)),),
    outputs=(TensorSpec(name="scores", datatype=Datatype.FP32, shape=(1000,)),),
    cost_rule=CostRule.ROWS,
)

CROSS_ENCODER = ModelDescription(
    name="ranker",
    version="1",
    platform="pytorch",
    inputs=tuple(
        TensorSpec(name=name, datatype=Datatype.INT64, shape=(RAGGED,), max_length=256)
        for name in ("ids", "types")
    ),
    outputs=(
        TensorSpec(name="scores", datatype=Datatype.FP32, shape=(2,)),
        TensorSpec(name="rank", datatype=Datatype.FP32, shape=()),
        TensorSpec(name="vector", datatype=Datatype.FP32, shape=(8,)),
    ),
    cost_rule=CostRule.PADDED,
    equal_lengths=True,
    text=TextInput(name="text", tokens="ids", max_tokens=256, segments="types"),
    embedding="vector",
    shortest_embedding=4,
    precision="BF16",
    classification=Classification(
        output="scores", labels=("yes", "no"), activation=Activation.SIGMOID
    ),
    ranking="rank",
)


def as_sent(description: ModelDescription) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(json.dumps(description.to_metadata()))
    return sent


@pytest.mark.parametrize(
    "model", [ENCODER, VISION, CROSS_ENCODER], ids=lambda model: str(model.name)
)
def test_a_description_survives_its_metadata(model: ModelDescription) -> None:
    assert description_from_metadata(as_sent(model)) == model


def test_labels_may_be_those_of_each_token() -> None:
    of_tokens = replace(
        CROSS_ENCODER,
        outputs=(
            TensorSpec(name="scores", datatype=Datatype.FP32, shape=(RAGGED, 2)),
            *CROSS_ENCODER.outputs[1:],
        ),
    )
    assert description_from_metadata(as_sent(of_tokens)) == of_tokens
    assert [model.classifies_tokens for model in (of_tokens, CROSS_ENCODER, ENCODER)] == [
        True,
        False,
        False,
    ]


def test_metadata_has_the_fields_of_v2_with_a_batch_dimension() -> None:
    sent = as_sent(ENCODER)
    assert sent["name"] == "minilm"
    assert sent["versions"] == ["1"]
    assert sent["inputs"] == [{"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}]
    assert sent["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}]
    assert sent["extensions"] == ["batchedmodel.batch"]


def test_the_metadata_of_another_server_is_refused() -> None:
    upstream = as_sent(VISION)
    del upstream["batchedmodel"]
    with pytest.raises(InvalidInput, match="metadata: is not a description of a model"):
        description_from_metadata(upstream)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"equalLengths": 1},
            "metadata: is not a description of a model: Broken('is not true or false')",
        ),
        ({"embedding": "other"}, 'embedding: "other" names an output that the model does not have'),
        ({"ranking": "other"}, 'ranking: "other" names an output that the model does not have'),
        ({"ranking": "scores"}, "ranking: [2] is not one score for each pair"),
        (
            {"classification": {"output": "scores", "labels": ["a"], "activation": "Softmax"}},
            "classification: [2] is not one score for each of its 1 labels",
        ),
        (
            {"text": {"name": "text", "tokens": "ids", "maxTokens": 9, "segments": "other"}},
            'text: "other" names an input that the model does not have',
        ),
    ],
)
def test_a_role_that_no_tensor_can_play_is_refused(change: dict[str, Any], message: str) -> None:
    sent = as_sent(CROSS_ENCODER)
    sent["batchedmodel"] |= change
    with pytest.raises(InvalidInput) as caught:
        description_from_metadata(sent)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (0, "0 is below the minimum 1"),
        (-5, "-5 is below the minimum 1"),
        (10**16, f"{10**16} is above the maximum {10**15}"),
        (True, "true is not an integer"),
        (9.5, "9.5 is not an integer"),
        ("9", '"9" is not an integer'),
    ],
)
def test_texts_are_cut_to_a_whole_number_of_tokens_from_1_on(value: object, rule: str) -> None:
    sent = as_sent(ENCODER)
    del sent["batchedmodel"]["maxLengths"]["input_ids"]
    sent["batchedmodel"]["text"]["maxTokens"] = value
    with pytest.raises(InvalidInput) as caught:
        description_from_metadata(sent)
    assert str(caught.value) == f"text.max_tokens: {rule}"


FIELDS = sorted(as_sent(ENCODER).keys() - {"extensions"})
OWN_FIELDS = sorted(as_sent(ENCODER)["batchedmodel"])


@pytest.mark.parametrize("field", FIELDS)
def test_metadata_that_lack_a_field_are_refused(field: str) -> None:
    sent = as_sent(ENCODER)
    del sent[field]
    with pytest.raises(InvalidInput):
        description_from_metadata(sent)


@settings(max_examples=examples(200))
@given(
    st.sampled_from(FIELDS), st.sampled_from(OWN_FIELDS), json_values(max_leaves=6), st.booleans()
)
def test_any_value_in_any_field_is_read_or_refused(
    field: str, own: str, value: object, inner: bool
) -> None:
    sent = as_sent(CROSS_ENCODER)
    if inner:
        sent["batchedmodel"][own] = value
    else:
        sent[field] = value
    try:
        description_from_metadata(sent)
    except InvalidInput as refused:
        str(refused).encode(errors="backslashreplace")
