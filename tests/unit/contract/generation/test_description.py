"""What a manifest's bounds make of those of an engine."""

import pytest

from batchedmodel_contract.generation.description import (
    GenerationDescription,
    StepBounds,
    StepSeconds,
)


@pytest.mark.parametrize(
    ("sequences", "tokens", "expected"),
    [
        (None, None, StepBounds(64, 512)),
        (8, None, StepBounds(8, 512)),
        (4096, None, StepBounds(4096, 4096)),
        (None, 2048, StepBounds(64, 2048)),
        (None, 16, StepBounds(16, 16)),
        (8, 16, StepBounds(8, 16)),
    ],
    ids=str,
)
def test_what_a_manifest_says_holds_and_the_rest_gives_way(
    sequences: int | None, tokens: int | None, expected: StepBounds
) -> None:
    engine = GenerationDescription(
        vocabulary=260,
        max_context_tokens=1024,
        block_tokens=16,
        blocks=256,
        max_sequences=64,
        max_tokens_per_step=512,
        step_seconds=StepSeconds(base=0.02, prefill_token=0.0, sequence=0.0, context_token=0.0),
    )
    assert engine.bounds(sequences, tokens) == expected
