"""Tokens classified without code, against transformers' own pipeline."""

from pathlib import Path
from typing import Any

import pytest

from support.chain import running_chain
from support.checkpoints import text_checkpoint

pytestmark = pytest.mark.torch

LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "LOC"}
TEXTS = [
    "w10 w20  w30 w40",
    "w5",
    # So many tokens that their labels are written by the helper.
    *(" ".join(f"w{index}" for index in range(first, first + 50)) for first in range(80, 110)),
]


def reference(path: Path) -> list[Any]:
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path / "tokenizer.json"), model_max_length=64
    )
    model = transformers.AutoModelForTokenClassification.from_pretrained(path)
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, device="cpu"
    )
    return [pipeline(text) for text in TEXTS]


async def test_tokens_are_labelled_as_by_transformers(tmp_path: Path) -> None:
    # One layer of large weights, or nearly all tokens had the same label.
    settings: dict[str, Any] = {"initializer_range": 0.5, "num_hidden_layers": 1}
    path = text_checkpoint(
        tmp_path / "model", "Bert", "ForTokenClassification", id2label=LABELS, **settings
    )
    expected = reference(path)
    async with running_chain(
        tmp_path, handler="hf", source={"path": str(path)}, parameters={"dtype": "float32"}
    ) as chain:
        asked = {"inputs": [[text] for text in TEXTS]}
        async with chain.session.post(chain.url("/classify"), json=asked) as response:
            assert response.status == 200, await response.text()
            answered = await response.json()
    found = {entry["entity"] for text in answered for entry in text}
    assert len(found) > 1
    assert "O" not in found
    for text, told in zip(answered, expected, strict=True):
        assert len(text) == len(told)
        for mine, theirs in zip(text, told, strict=True):
            assert mine["score"] == pytest.approx(float(theirs.pop("score")), abs=1e-4)
            assert {name: mine[name] for name in theirs} == theirs
