"""Texts that are drawn: the same seed gives the same text, whatever shares the engine's steps."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchedmodel_contract.generation.frames import Finish, Refusal, Sampling, Submit
from batchedmodel_model_server.api.generator import CacheSettings, Draw, Generator, StepPart
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_model_server.handlers.hf import HuggingFace
from batchedmodel_scheduling.engine.step_planner import StepSettings
from batchedmodel_scheduling.latency.step_times import StepCost
from support.random_checkpoints import BYTES_FROM, VOCABULARY, generating_checkpoint

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

POISON = 5
"""A token whose vector is no numbers; none of those that are tried when the model is loaded."""


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    from safetensors.torch import load_file, save_file

    folder = generating_checkpoint(tmp_path_factory.mktemp("llama"), "Llama")
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, file, {"format": "pt"})
    handler = HuggingFace()
    handler.parameters = {"dtype": "float32"}
    handler.cache = CacheSettings(memory_bytes=1 << 20, max_context_tokens=128)
    handler.load(folder, "cpu")
    assert handler.generator is not None
    return handler.generator


def engine_of(generator: Generator) -> Engine:
    return Engine(
        generator.runner,
        StepSettings(
            max_sequences=8,
            max_tokens_per_step=40,
            block_tokens=generator.runner.block_tokens,
            blocks=generator.runner.blocks,
        ),
        StepCost(base=0.0, prefill_token=0.0, sequence=0.0),
        vocabulary=generator.vocabulary,
        max_context_tokens=generator.max_context_tokens,
    )


def texts(generator: Generator, submits: Sequence[Submit]) -> dict[tuple[int, int], list[int]]:
    engine = engine_of(generator)
    found: dict[tuple[int, int], list[int]] = {}
    for submit in submits:
        engine.submit(submit, 0.0)
    while engine.busy:
        engine.step(0.0)
        for token in engine.take(0.0)[0].tokens:
            found.setdefault((token.id, token.choice), []).append(token.token)
    return found


def submits(count: int) -> list[Submit]:
    rng = random.Random(0)
    return [
        Submit(
            id=number,
            ids=array("i", [rng.randrange(BYTES_FROM + 4, VOCABULARY) for _ in range(number + 1)]),
            max_tokens=20,
            sampling=Sampling(
                seed=number, temperature=0.8, top_p=0.95, presence_penalty=0.5, logprobs=1
            ),
        )
        for number in range(count)
    ]


def test_the_same_seed_gives_the_same_text_alone_and_among_others(generator: Generator) -> None:
    asked = submits(12)
    together = texts(generator, asked)
    for submit in asked:
        assert texts(generator, [submit])[submit.id, 0] == together[submit.id, 0]


def test_a_text_that_is_submitted_again_goes_on_as_it_would_have(generator: Generator) -> None:
    [submit] = submits(9)[-1:]
    whole = texts(generator, [submit])[submit.id, 0]
    for given in (1, 7, 19):
        ids = array("i", [*submit.ids, *whole[:given]])
        rest = texts(generator, [replace(submit, ids=ids, given=given), *submits(3)])
        assert rest[submit.id, 0] == whole[given:]


def test_choices_differ_and_each_can_go_on_by_itself(generator: Generator) -> None:
    [submit] = submits(9)[-1:]
    found = texts(generator, [replace(submit, choices=3)])
    assert len({tuple(text) for text in found.values()}) == 3
    second = found[submit.id, 1]
    ids = array("i", [*submit.ids, *second[:5]])
    again = texts(generator, [replace(submit, ids=ids, given=5, first_choice=1)])
    assert again[submit.id, 1] == second[5:]


def test_a_text_whose_scores_are_no_numbers_fails_alone(generator: Generator) -> None:
    engine = engine_of(generator)
    good = submits(4)
    alone = texts(generator, good)
    bad = Submit(id=99, ids=array("i", [9, POISON, 9]), max_tokens=5)
    told: dict[int, list[int]] = {}
    for submit in (*good[:2], bad, *good[2:]):
        engine.submit(submit, 0.0)
    refusals = []
    while engine.busy:
        engine.step(0.0)
        report, refused = engine.take(0.0)
        refusals += refused
        for token in report.tokens:
            assert token.finish is not Finish.FAILED
            told.setdefault(token.id, []).append(token.token)
    [refusal] = refusals
    assert (refusal.id, refusal.why) == (99, Refusal.FAILED)
    assert "no number" in refusal.message
    assert told == {submit.id: alone[submit.id, 0] for submit in good}


def test_what_is_no_number_stays_in_its_own_text_when_its_block_is_used_again(
    generator: Generator,
) -> None:
    runner = generator.runner
    poisoned = array("i", [9, POISON] + [9] * 30)
    runner.run([StepPart(poisoned, 0, [0], [])])
    ids = array("i", range(10, 30))
    expected = runner.run([StepPart(ids, 0, [1], [Draw(Sampling(temperature=0), 0, ids, 20)])])
    runner.run([StepPart(ids[:19], 0, [0], [])])
    found = runner.run([StepPart(ids[19:], 19, [0], [Draw(Sampling(temperature=0), 0, ids, 20)])])
    assert found == expected or found[0][0].token == expected[0][0].token
    with pytest.raises(ForwardFailed):
        runner.run([StepPart(poisoned, 0, [0], [Draw(Sampling(), 0, poisoned, 32)])])
