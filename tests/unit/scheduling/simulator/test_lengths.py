"""Distributions of lengths."""

import math

import numpy as np
import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.simulator.lengths import Constant, Lognormal, Recorded
from batchedmodel_scheduling.simulator.streams import stream


def test_constant_lengths_are_equal() -> None:
    assert Constant(length=3).draw(4, stream(1, "lengths")) == [3, 3, 3, 3]


def test_lognormal_lengths_are_whole_and_stay_within_their_bounds() -> None:
    source = Lognormal(mu=math.log(90), sigma=0.9, lowest=8, highest=512)
    drawn = source.draw(50_000, stream(1, "lengths"))
    assert (min(drawn), max(drawn)) == (8, 512)
    assert np.median(drawn) == pytest.approx(90, rel=0.03)
    assert all(type(length) is int for length in drawn[:100])


def test_recorded_lengths_keep_their_order_and_begin_anew() -> None:
    assert Recorded(recorded=(4, 9, 2)).draw(5, stream(1, "lengths")) == [4, 9, 2, 4, 9]


def test_there_must_be_a_recorded_length() -> None:
    with pytest.raises(InvalidInput, match="trace: must hold at least one length"):
        Recorded(recorded=())


@pytest.mark.parametrize("source", [Constant(), Lognormal(mu=1, sigma=1, lowest=1, highest=9)])
def test_nothing_is_drawn_for_nobody(source: Constant | Lognormal) -> None:
    assert source.draw(0, stream(1, "lengths")) == []
