"""Each family's tokens, however texts come and go, are those of the model's own plain pass."""

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.generation.frames import Sampling, Submit
from batchedmodel_model_server.api.generator import CacheSettings, Generator
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_model_server.handlers.hf import HuggingFace
from batchedmodel_scheduling.engine.step_planner import StepSettings
from batchedmodel_scheduling.latency.step_times import StepCost
from support.random_checkpoints import (
    BYTES_FROM,
    FAMILIES,
    VOCABULARY,
    generating_checkpoint,
    reference,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BLOCKS = 5
CONTEXT = 128
GREEDY = Sampling(temperature=0.0)
FREE = StepCost(base=0.0, prefill_token=0.0, sequence=0.0)
COUNTS = (16, pytest.param(300, marks=pytest.mark.nightly))
FEWER = (4, pytest.param(20, marks=pytest.mark.nightly))


def generator_of(folder: Path, dtype: str = "float32", blocks: int = BLOCKS) -> Generator:
    """The checkpoint's, with a cache that holds few sequences."""
    handler = HuggingFace()
    handler.parameters = {"dtype": dtype}
    config = reference(folder, dtype).config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token = 2 * config.num_hidden_layers * heads * size * (4 if dtype == "float32" else 2)
    handler.cache = CacheSettings(memory_bytes=blocks * 32 * token, max_context_tokens=CONTEXT)
    handler.load(folder, "cpu")
    assert handler.generator is not None
    assert handler.generator.runner.blocks == blocks
    return handler.generator


def engine_of(generator: Generator, *, sequences: int = 8, tokens: int = 48) -> Engine:
    return Engine(
        generator.runner,
        StepSettings(
            max_sequences=sequences,
            max_tokens_per_step=tokens,
            block_tokens=generator.runner.block_tokens,
            blocks=generator.runner.blocks,
        ),
        FREE,
        vocabulary=generator.vocabulary,
        max_context_tokens=generator.max_context_tokens,
    )


@dataclass
class Told:
    """What became of some requests."""

    texts: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    preemptions: int = 0


def run(engine: Engine, coming: Sequence[Submit], rng: random.Random | None = None) -> Told:
    """All of them at once, or as they come; then some leave as well."""
    told, waiting, sent = Told(), list(coming), 0
    while waiting or engine.busy:
        while waiting and (rng is None or rng.random() < 0.7):
            engine.submit(waiting.pop(0), 0.0)
            sent += 1
        if rng is not None and sent and rng.random() < 0.04:
            leaving = coming[rng.randrange(sent)].id
            told.cancelled.add(leaving)
            engine.cancel(leaving)
        engine.step(0.0)
        report, refused = engine.take(0.0)
        assert not refused
        told.preemptions = report.preemptions
        for token in report.tokens:
            told.texts.setdefault((token.id, token.choice), []).append(token.token)
    assert report.free_blocks == report.blocks
    return told


def drawn(rng: random.Random, number: int, sampling: Sampling = GREEDY) -> Submit:
    length = rng.choice([1, 2, 5, rng.randint(1, 60)])
    return Submit(
        id=number,
        ids=array("i", [rng.randrange(BYTES_FROM, VOCABULARY) for _ in range(length)]),
        max_tokens=rng.randint(1, 60),
        choices=rng.choice([1, 1, 1, 2]),
        sampling=sampling,
    )


def scores(model: Any, ids: Sequence[int]) -> Any:
    """Of each place's next token, in one pass."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()


def furthest(model: Any, submits: Sequence[Submit], told: Told) -> float:
    """By how much any token's score is below the largest at its place, in one plain pass."""
    found = 0.0
    for submit in submits:
        for choice in range(submit.choices):
            text = told.texts.get((submit.id, choice), [])
            if submit.id not in told.cancelled:
                assert len(text) == submit.max_tokens
            if not text:
                continue
            rows = scores(model, [*submit.ids, *text])[len(submit.ids) - 1 : -1]
            own = rows.gather(1, torch.tensor(text)[:, None])[:, 0]
            found = max(found, float((rows.amax(1) - own).max()))
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    made = tmp_path_factory.mktemp("checkpoints")
    return {name: generating_checkpoint(made / name, name) for name in FAMILIES}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_token_has_the_largest_score_of_one_plain_pass(
    checkpoints: Mapping[str, Path], family: str, count: int
) -> None:
    rng = random.Random(f"{family} {count}")
    submits = [drawn(rng, number) for number in range(count)]
    told = run(engine_of(generator_of(checkpoints[family])), submits, rng)
    # Of few texts, whether any gives way to others is a matter of chance.
    assert count < 100 or (told.preemptions and told.cancelled)
    assert furthest(reference(checkpoints[family]), submits, told) <= 1e-4


@pytest.mark.parametrize("count", FEWER)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_are_those_of_transformers_generate(
    checkpoints: Mapping[str, Path], family: str, count: int
) -> None:
    rng = random.Random(family)
    submits = [drawn(rng, number) for number in range(count)]
    told = run(engine_of(generator_of(checkpoints[family])), submits, random.Random(1))
    model, repeated = reference(checkpoints[family]), 0
    for submit in (one for one in submits if one.id not in told.cancelled):
        ids = torch.tensor([submit.ids.tolist()])
        with torch.inference_mode():
            whole = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=submit.max_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        expected = whole[0, len(submit.ids) :].tolist()
        assert told.texts[submit.id, 0] == expected
        repeated += len(expected) > 8 and len(set(expected)) == 1
    assert repeated <= count // 2, "the model says the same again and again, which tells little"


@pytest.mark.parametrize("family", FAMILIES)
def test_halves_are_as_near_to_their_own_plain_pass_as_halves_are(
    checkpoints: Mapping[str, Path], family: str
) -> None:
    rng = random.Random(family)
    submits = [drawn(rng, number) for number in range(6)]
    told = run(engine_of(generator_of(checkpoints[family], "bfloat16")), submits, rng)
    model = reference(checkpoints[family], "bfloat16")
    largest = float(scores(model, submits[0].ids).abs().max())
    assert furthest(model, submits, told) <= 0.05 * largest
