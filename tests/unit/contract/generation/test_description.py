"""What callers of an engine must know, as JSON."""

import json
from typing import Any

import pytest

from batchedmodel_contract.generation.description import (
    GenerationDescription,
    StepSeconds,
    generation_from_mapping,
)
from batchedmodel_contract.invalid_input import InvalidInput

DESCRIPTION = GenerationDescription(
    vocabulary=10,
    max_context_tokens=100,
    block_tokens=16,
    blocks=7,
    max_sequences=4,
    max_tokens_per_step=8,
    step_seconds=StepSeconds(base=1.0, prefill_token=0.5, sequence=0.25, context_token=0.0),
    stop_ids=(1, 2),
    chat_template="{{ messages }}",
    special_tokens={"bos_token": "<s>"},
    sampling_defaults={"temperature": 0.5, "top_k": 20},
)


def test_a_description_survives_its_document() -> None:
    document = json.loads(json.dumps(DESCRIPTION.to_mapping()))
    assert generation_from_mapping(document) == DESCRIPTION


@pytest.mark.parametrize(
    "edit",
    [
        {"blocks": 0},
        {"vocabulary": "many"},
        {"stopIds": None},
        {"specialTokens": []},
        {"stepSeconds": {"base": -1}},
    ],
)
def test_a_document_that_is_no_description_is_refused(edit: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="generation"):
        generation_from_mapping({**DESCRIPTION.to_mapping(), **edit})
