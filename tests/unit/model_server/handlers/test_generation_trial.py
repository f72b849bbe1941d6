"""How long texts may be is what was tried, and no more."""

from typing import Any

import pytest

from batchedmodel_model_server.handlers.generation_trial import Trial, tried

pytestmark = pytest.mark.torch
_FAR = 10**15
"""Tokens that no machine computes within a minute."""


class _Noted(Trial):
    """Notes what would have been tried."""

    beyonds: list[int]
    same: bool

    def __init__(self, *, same: bool = True) -> None:
        nothing: Any = None
        super().__init__(runner=nothing, plain=nothing, device="cpu", vocabulary=9, tolerance=0.0)
        object.__setattr__(self, "beyonds", [])
        object.__setattr__(self, "same", same)

    def short(self) -> None:
        """They agree."""

    def seconds(self, tokens: int) -> float:
        return tokens / 1000

    def beyond(self, window: int) -> None:
        self.beyonds.append(window)

    def across(self, switch: int) -> bool:
        return self.same


def test_texts_end_at_a_window_beyond_which_trying_one_takes_too_long() -> None:
    trial = _Noted()
    tokens, why = tried(trial, {16, _FAR}, (), 2 * _FAR, asked=False)
    assert (tokens, trial.beyonds) == (_FAR, [16])
    assert f"beyond the window of {_FAR} would take" in why


def test_a_length_that_somebody_asked_for_is_tried_however_long_that_takes() -> None:
    trial = _Noted()
    assert tried(trial, {_FAR}, (), 2 * _FAR, asked=True) == (2 * _FAR, "")
    assert trial.beyonds == [_FAR]


def test_texts_end_where_positions_change_for_all_of_them() -> None:
    tokens, why = tried(_Noted(same=False), (), {4096}, 8192, asked=True)
    assert tokens == 4096
    assert "change behind 4096" in why
