"""The search for the highest rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_cli.simulator.search import highest_rate


@given(st.floats(1, 1e5), st.floats(0.0011, 900), st.sampled_from([0.01, 0.1]))
def test_the_limit_is_found_from_any_guess(limit: float, off: float, tolerance: float) -> None:
    found = highest_rate(lambda rate: rate <= limit, limit * off, tolerance=tolerance)
    assert found <= limit < found * (1 + tolerance)


@pytest.mark.parametrize("off", [0.9, 0.95, 1.0, 1.05, 1.1])
def test_a_good_guess_takes_few_trials(off: float) -> None:
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= 700

    highest_rate(holds, 700 * off)
    assert len(asked) <= 7


def test_the_result_was_tried_and_held() -> None:
    answers: dict[float, bool] = {}

    def flickers(rate: float) -> bool:
        answers[rate] = rate < 680 or (rate < 720 and int(rate) % 2 == 0)
        return answers[rate]

    found = highest_rate(flickers, 640)
    assert 650 < found < 720
    assert answers[found]


def test_nothing_holds() -> None:
    assert highest_rate(lambda rate: False, 500) == 0


def test_a_rate_without_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="everything holds"):
        highest_rate(lambda rate: True, 500)
