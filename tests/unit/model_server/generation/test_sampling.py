"""How the next token is chosen: filters, penalties, logprobs, and what decides a draw."""

from __future__ import annotations  # array.array takes no type argument at run time

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.generation.sampling import sampled, uniform

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


def test_seed_choice_and_place_decide_a_draw() -> None:
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    others = [uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(-1, 0, 0)]
    assert len({uniform(1, 2, 3), *others}) == 5
    numbers = [uniform(seed, 0, place) for seed in range(20) for place in range(200)]
    assert all(0 <= one < 1 for one in numbers)
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.015)
