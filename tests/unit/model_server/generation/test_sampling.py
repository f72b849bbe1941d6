"""How the next token is chosen: filters, penalties, logprobs, and what decides a draw."""

from __future__ import annotations  # array.array takes no type argument at run time

import math
import random
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.generation.sampling import sampled, uniform
from support.examples import examples

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def draw(ids: Sequence[int] = (0,), prompt: int = 1, choice: int = 0, **sampling: Any) -> Draw:
    return Draw(Sampling(**sampling), choice, array("i", ids), prompt)


def scores(*rows: Sequence[float]) -> Any:
    """Of probabilities."""
    return torch.tensor(rows, dtype=torch.float64).log().float()


def tokens(logits: Any, **sampling: Any) -> Counter[int]:
    """What 4,000 texts with different seeds get."""
    draws = [draw(seed=seed, **sampling) for seed in range(4000)]
    return Counter(one.token for one in sampled(logits.expand(4000, -1), draws))


def test_without_temperature_the_largest_score_is_chosen() -> None:
    found = sampled(scores((0.2, 0.5, 0.3), (0.6, 0.1, 0.3)), [draw(temperature=0.0)] * 2)
    assert [one.token for one in found] == [1, 0]
    assert math.isnan(found[0].logprob)


def test_tokens_are_as_frequent_as_they_are_probable() -> None:
    found = tokens(scores((0.5, 0.3, 0.15, 0.05)))
    # Three standard deviations of 4,000 draws.
    assert [found[at] / 4000 for at in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.024)


def test_a_temperature_flattens_or_sharpens() -> None:
    flat = tokens(scores((0.8, 0.2)), temperature=2.0)
    assert flat[0] / 4000 == pytest.approx(2 / 3, abs=0.024)
    assert set(tokens(scores((0.8, 0.2)), temperature=1e-9)) == {0}


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.4}, {3}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.71}, {0, 1, 3}),
        ({"top_p": 1e-6}, {3}),
        ({"min_p": 0.5}, {0, 1, 3}),
        ({"min_p": 0.7}, {1, 3}),
        ({"min_p": 1.0}, {3}),
        # Of the two that are left 0.57 is the first's, which is enough.
        ({"top_k": 2, "top_p": 0.5}, {3}),
    ],
)
def test_filters_leave_only_the_probable(sampling: dict[str, Any], left: set[int]) -> None:
    assert set(tokens(scores((0.2, 0.3, 0.1, 0.4)), **sampling)) == left


def test_filters_of_one_row_are_no_other_rows() -> None:
    draws = [draw(seed=seed, top_k=1 if seed % 2 else 0) for seed in range(400)]
    found = sampled(scores((0.5, 0.3, 0.2)).expand(400, -1), draws)
    assert {one.token for one in found[1::2]} == {0}
    assert {one.token for one in found[::2]} == {0, 1, 2}


def test_the_top_part_is_found_however_many_tokens_it_has() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, :2500] = 1.0
    found = tokens(logits, top_p=0.7)
    assert max(found) < 2500


def test_penalties_count_what_they_should() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.1]])

    def chosen(ids: Sequence[int], **sampling: Any) -> int:
        return sampled(logits, [draw(ids, temperature=0.0, **sampling)])[0].token

    assert chosen([0, 1], presence_penalty=0.05) == 0, "a prompt is not penalised"
    assert chosen([1, 0], presence_penalty=0.05) == 0
    assert chosen([1, 0], presence_penalty=0.15) == 1
    assert chosen([1, 0, 0], frequency_penalty=0.06) == 1
    assert chosen([1, 0], frequency_penalty=0.06) == 0
    assert chosen([0, 3], repetition_penalty=1.2) == 1, "a prompt counts for this one"
    low = torch.tensor([[-1.0, -1.1]])
    given = draw([0], temperature=0.0, repetition_penalty=1.2)
    assert sampled(low, [given])[0].token == 1


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.2}, {"presence_penalty": 0.2}, {"frequency_penalty": 0.2}],
)
def test_penalties_of_tokens_without_a_score_change_no_row(penalty: dict[str, Any]) -> None:
    """A head may be narrower than the embeddings: the neighbour's best token was penalised."""
    logits = torch.tensor([[1.9, 2.0], [2.0, 1.9]])
    wide, other = draw([2, 2], temperature=0.0, **penalty), draw(temperature=0.0)
    assert [one.token for one in sampled(logits, [wide, other])] == [1, 0]
    assert [one.token for one in sampled(logits, [other, wide])] == [1, 0]


def test_logprobs_are_the_models_own_whatever_is_done_to_the_scores() -> None:
    given = draw([0, 1], logprobs=2, temperature=0.5, top_k=1, presence_penalty=9.0)
    [found] = sampled(scores((0.2, 0.5, 0.3)), [given])
    assert found.logprob == pytest.approx(math.log((0.2, 0.5, 0.3)[found.token]))
    assert [token for token, _ in found.top] == [1, 2]
    assert [value for _, value in found.top] == pytest.approx([math.log(0.5), math.log(0.3)])


def test_each_row_is_told_as_many_of_the_most_probable_as_it_asked_for() -> None:
    draws = [draw(temperature=0.0, logprobs=count) for count in (None, 0, 1, 50)]
    found = sampled(scores((0.2, 0.5, 0.3)).expand(4, -1), draws)
    assert [len(one.top) for one in found] == [0, 0, 1, 3]
    assert math.isnan(found[0].logprob)
    assert found[1].logprob == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_row_that_is_no_numbers_is_a_failure(wrong: float) -> None:
    logits = torch.zeros(2, 4)
    logits[1, 2] = wrong
    with pytest.raises(ForwardFailed, match="no number"):
        sampled(logits, [draw(), draw()])


def test_what_shares_a_step_changes_no_draw() -> None:
    torch.manual_seed(0)
    logits = torch.randn(32, 1000)
    draws = [
        draw(range(at + 1), prompt=1, seed=at, top_p=(0.9, 1.0)[at % 2], top_k=(0, 40)[at % 2])
        for at in range(32)
    ]
    together = [one.token for one in sampled(logits, draws)]
    alone = [sampled(logits[at : at + 1], [draws[at]])[0].token for at in range(32)]
    assert together == alone


def plain_token(logits: Any, one: Draw) -> int:
    """What a row gives by the rule itself: over the whole vocabulary, filter by filter."""
    how, scores = one.sampling, logits.float().clone()
    vocabulary = len(scores)
    for token in set(one.ids) if how.repetition_penalty != 1 else ():
        less, more = scores[token] / how.repetition_penalty, scores[token] * how.repetition_penalty
        scores[token] = less if scores[token] > 0 else more
    for token, count in Counter(one.ids[one.prompt_tokens :]).items():
        taken = how.presence_penalty + how.frequency_penalty * count
        scores[token] -= torch.tensor(taken, dtype=torch.float32)
    if how.temperature == 0:
        return int(scores.argmax())
    scores = (scores - scores.max()) / torch.tensor(max(how.temperature, 1e-5))
    if 0 < how.top_k < vocabulary:
        scores[scores < scores.sort(descending=True).values[how.top_k - 1]] = -math.inf
    probabilities = scores.softmax(-1)
    top_p, least = torch.tensor(how.top_p), torch.tensor(0.0)
    if top_p < 1:
        best = probabilities.sort(descending=True).values
        members = int((best.cumsum(-1) - best < top_p).sum())
        least = best[max(1, members) - 1]
    least = torch.maximum(least, probabilities.max() * torch.tensor(how.min_p))
    probabilities[probabilities < least] = 0
    summed = probabilities.cumsum(-1)
    number = torch.tensor(uniform(how.seed, one.choice, len(one.ids) - one.prompt_tokens))
    place = torch.searchsorted(summed, number * summed[-1], right=True)
    return int(torch.minimum(place, torch.searchsorted(summed, summed[-1])))


def any_logits(rng: random.Random, rows: int) -> Any:
    """Peaked, flat, all the same, with ties, with tokens that are ruled out."""
    vocabulary = rng.choice([3, 150, 1000, 5003, 33_000])
    torch.manual_seed(rng.getrandbits(40))
    logits = torch.randn(rows, vocabulary) * rng.choice([0.01, 0.3, 1.0, 3.0, 10.0])
    match rng.randrange(6):
        case 0:
            return logits.bfloat16()
        case 1:
            return (logits * 4).round() / 4
        case 2:
            return logits * 0 + rng.random()
        case 3:
            logits[torch.rand(rows, vocabulary) < 0.7] = -math.inf
            logits[:, rng.randrange(vocabulary)] = 1.0
        case 4:
            return logits + rng.choice([1000, -1000])
    return logits


def any_draw(rng: random.Random, vocabulary: int) -> Draw:
    fields: dict[str, Any] = {
        "seed": rng.getrandbits(63),
        "temperature": rng.choice([0.0, 1e-9, 1e-3, 0.3, 0.7, 1.0, 1.0, 5.0, 100.0]),
    }
    usual: dict[str, list[Any]] = {
        "top_p": [0.0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 0.99999999, rng.random()],
        "top_k": [1, 2, 5, 20, 50, 255, 256, 257, 5000, 1 << 30],
        "min_p": [1e-9, 1e-4, 0.05, 0.5, 1.0, rng.random()],
        "repetition_penalty": [0.01, 0.5, 1.1, 2.0],
        "presence_penalty": [-2.0, 0.5, 2.0],
        "frequency_penalty": [-2.0, 0.1, 0.5],
        "logprobs": [0, 1, 20],
    }
    for name, values in usual.items():
        if rng.random() < 0.35:
            fields[name] = rng.choice(values)
    ids = [rng.randrange(min(vocabulary, 30)) for _ in range(rng.randint(1, 60))]
    return draw(ids, rng.randint(1, len(ids)), rng.randrange(3), **fields)


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**40))
def test_every_row_gets_the_token_of_the_plain_rule_whatever_its_neighbours_ask(seed: int) -> None:
    """So the same seed gives the same text in every version, and in any company."""
    rng = random.Random(seed)
    logits = any_logits(rng, rng.choice([1, 2, 9]))
    draws = [any_draw(rng, logits.shape[-1]) for _ in logits]
    kept = logits.clone()
    found = sampled(logits, draws)
    assert torch.equal(logits, kept)
    expected = [plain_token(row, one) for row, one in zip(logits, draws, strict=True)]
    assert [one.token for one in found] == expected


@pytest.mark.alone
def test_a_row_that_needs_the_whole_vocabulary_does_not_make_its_neighbours_need_it() -> None:
    """Such a row had the whole vocabulary sorted for every row of the step."""
    torch.manual_seed(1)
    logits = torch.randn(17, 151_936) * 6
    usual = [draw(seed=seed, temperature=0.7, top_p=0.95) for seed in range(17)]
    needy = [*usual[:16], draw(temperature=100.0, top_p=0.999)]
    seconds: dict[bool, float] = dict.fromkeys((False, True), math.inf)
    for draws in [usual, needy] * 4:
        began = time.perf_counter()
        sampled(logits, draws)
        took = time.perf_counter() - began
        seconds[draws is needy] = min(took, seconds[draws is needy])
    assert seconds[True] < 2 * seconds[False]


def test_a_row_is_told_the_most_probable_in_order_however_large_the_vocabulary() -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, 40_011)
    logits[0, -3:] = torch.tensor([9.0, 11.0, 10.0])
    for row, told in zip(logits, sampled(logits, [draw(logprobs=20)] * 2), strict=True):
        best = row.log_softmax(-1).topk(20)
        assert [token for token, _ in told.top] == best.indices.tolist()
        assert [value for _, value in told.top] == best.values.tolist()


def test_seed_choice_and_place_decide_a_draw() -> None:
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    others = [uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(-1, 0, 0)]
    assert len({uniform(1, 2, 3), *others}) == 5
    numbers = [uniform(seed, 0, place) for seed in range(20) for place in range(200)]
    assert all(0 <= one < 1 for one in numbers)
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.015)
