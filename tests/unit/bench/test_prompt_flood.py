"""A first token beside a flood is compared with one alone, and none that is missing is left out."""

import math
from typing import Any

from prompt_flood import FirstTokens, figures, first_token
from stream_plan import Record


def answered(seconds: float, **values: Any) -> Record:
    whole = {"tokens": 3, "ended": 9.0, "whole": True, "told_end": True, "told_reason": True}
    return Record(mark=1, expected=3, due=1.0, sent=1.0, first=1.0 + seconds, **{**whole, **values})


def test_the_median_counts_what_broke_off_as_never() -> None:
    assert first_token([answered(0.5), answered(0.125), answered(0.25)]) == 0.25
    broken = [answered(0.1, whole=False), answered(0.1, tokens=2)]
    assert first_token([answered(0.1), *broken]) == math.inf


def test_each_round_is_compared_with_its_own_time_alone() -> None:
    rounds = [FirstTokens(alone=0.5, beside=0.75), FirstTokens(alone=0.125, beside=0.5)]
    (ratio, *others) = figures([*rounds, FirstTokens(alone=0.25, beside=0.25)])
    assert (ratio.value, ratio.holds) == (1.5, True)
    assert all(one.holds is None for one in others)
    assert figures([FirstTokens(alone=0.1, beside=math.inf)])[0].holds is False
