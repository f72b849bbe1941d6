"""Adapters of real checkpoints through both processes: each caller has what peft says alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from batchedmodel_contract.lora import ADAPTERS_FILE
from support.adapters import saved_adapter, with_peft
from support.chain import Chain, running_chain
from support.checkpoints import text_checkpoint
from support.random_checkpoints import STOP, generating_checkpoint

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.asyncio]

CLASSIFIER = "AutoModelForSequenceClassification"
LOW_RANK = {"r": 4, "lora_alpha": 8}
NAMES = ("m", "first", "second")
TOKENS = 24


def wish(folder: Path, *names: str) -> str:
    items = [{"name": name, "source": {"path": str(folder / name)}} for name in names]
    (folder / "wishes").mkdir()
    (folder / "wishes" / ADAPTERS_FILE).write_text(json.dumps({"slots": 2, "items": items}))
    return str(folder / "wishes")


def label(adapter: Path, *labels: str) -> None:
    (adapter / "config.json").write_text(json.dumps({"id2label": dict(enumerate(labels))}))


async def ask(chain: Chain, path: str, document: Any) -> tuple[int, Any]:
    async with chain.session.post(chain.url(path), json=document) as response:
        return response.status, await response.json()


async def test_each_row_of_a_mixed_batch_is_told_by_the_labels_of_its_adapter(
    tmp_path: Path,
) -> None:
    import torch

    base = text_checkpoint(
        tmp_path / "base",
        "Bert",
        "ForSequenceClassification",
        id2label={0: "good", 1: "bad", 2: "odd"},
    )
    for seed, name in enumerate(("first", "second", "wider"), 1):
        saved_adapter(
            tmp_path / name,
            base,
            CLASSIFIER,
            seed=seed,
            target_modules=["query", "value"],
            modules_to_save=["classifier"],
            **LOW_RANK,
        )
    label(tmp_path / "first", "ham", "spam", "eggs")
    label(tmp_path / "wider", "a", "b", "c", "d")
    labels = {
        "m": ("good", "bad", "odd"),
        "first": ("ham", "spam", "eggs"),
        "second": ("good", "bad", "odd"),
    }
    folders = [tmp_path / name for name in NAMES[1:]]
    stock = dict(zip(NAMES, with_peft(base, CLASSIFIER, folders), strict=True))
    texts = ["w5 w6 w7", "w8", " ".join(f"w{number}" for number in range(10, 40))]
    async with running_chain(
        tmp_path,
        handler="hf",
        parameters={"dtype": "float32"},
        source={"path": str(base)},
        adapters_folder=wish(tmp_path, "first", "second", "wider"),
        adapter_header="task-id",
        adapter_slots=2,
    ) as chain:
        wanted = [(name, text) for text in texts for name in NAMES] * 2
        answers = await asyncio.gather(
            *(ask(chain, "/classify", {"model": name, "input": text}) for name, text in wanted)
        )
        refused = await ask(chain, "/classify", {"model": "wider", "input": "w5"})
        async with chain.session.get(chain.url("/v2/models/first")) as response:
            described = (await response.json())["batchedmodel"]["classification"]
    for (name, text), (status, answer) in zip(wanted, answers, strict=True):
        ids = [1, *(int(word[1:]) for word in text.split()), 2]
        with torch.inference_mode():
            expected = stock[name](input_ids=torch.tensor([ids])).logits[0].softmax(-1)
        assert status == 200, answer
        assert answer["model"] == name
        (one,) = answer["data"]
        assert one["probs"] == pytest.approx(expected.tolist(), abs=1e-5)
        assert one["label"] == labels[name][int(expected.argmax())]
    assert refused[0] == 503
    assert "config.json has 4 labels, and the base 3" in json.dumps(refused[1])
    assert described["labels"] == ["ham", "spam", "eggs"]


async def test_texts_of_two_adapters_and_of_none_at_the_same_time_are_what_each_is_alone(
    tmp_path: Path,
) -> None:
    base = generating_checkpoint(tmp_path / "base", "Llama")
    for seed, name in enumerate(NAMES[1:], 1):
        saved_adapter(
            tmp_path / name,
            base,
            "AutoModelForCausalLM",
            seed=seed,
            target_modules=["q_proj", "v_proj"],
            **LOW_RANK,
        )
    folders = [tmp_path / name for name in NAMES[1:]]
    models = dict(zip(NAMES, with_peft(base, "AutoModelForCausalLM", folders), strict=True))
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    prompts = [[1, *range(20, 20 + length)] for length in (1, 20, 70)]
    wanted = [(name, prompt) for prompt in prompts for name in NAMES]
    expected = [
        tokenizer.decode(likeliest(models[name], prompt, TOKENS)) for name, prompt in wanted
    ]
    async with running_chain(
        tmp_path,
        handler="hf",
        parameters={"dtype": "float32"},
        source={"path": str(base)},
        adapters_folder=wish(tmp_path, *NAMES[1:]),
        adapter_header="task-id",
        adapter_slots=2,
    ) as chain:

        async def text(name: str, prompt: Sequence[int]) -> str:
            document = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
            status, answer = await ask(chain, "/v1/completions", document)
            assert status == 200, answer
            assert answer["model"] == name
            told: str = answer["choices"][0]["text"]
            return told

        alone = [await text(*one) for one in wanted]
        together = await asyncio.gather(*(text(*one) for one in wanted * 2))
    assert alone == expected
    assert together == expected * 2
    assert len(set(expected)) == len(expected)


def likeliest(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow a prompt, each the likeliest, by plain passes."""
    import torch

    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == STOP:
                break
    return ids[len(prompt) :]
