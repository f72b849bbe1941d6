"""How long a batch will take: the shape from the server's profile, the scale from what is observed.

The profile fixes the form t = fixed + per_row * rows + per_token * tokens; machines drift, so a
robust factor follows the ratio of observed to predicted times. Without a profile nothing is
predicted, and the pipeline then hands over one batch at a time.
"""

import math
import statistics
from collections import deque
from typing import Final

import numpy as np

from batchedmodel_contract.description import CostRule
from batchedmodel_contract.profile import Profile

_REMEMBERED: Final = 15  # ratios; their median forgets a run of stragglers but follows a drift


class BatchTimes:
    """Predicts the forward pass of a batch, in seconds."""

    def __init__(self, profile: Profile | None) -> None:
        self._rule = profile.cost_rule if profile else CostRule.PADDED
        self._terms = _fit(profile) if profile and profile.points else None
        self._ratios: deque[float] = deque(maxlen=_REMEMBERED)
        self._scale = 1.0

    @property
    def known(self) -> bool:
        """Whether anything can be predicted."""
        return self._terms is not None

    def predict(self, lengths: list[int]) -> float | None:
        """Seconds for a batch of items of these lengths; None while nothing is known."""
        expected = self._expected(lengths)
        if expected is None:
            return None
        return expected * self._scale

    def share(self, length: int, rows: int) -> float | None:
        """Seconds of the device for one item's part in a batch of `rows` items of this length."""
        if self._terms is None:
            return None
        fixed, per_row, per_token = self._terms
        tokens = 0 if self._rule is CostRule.ROWS else length
        return max(0.0, fixed / rows + per_row + per_token * tokens) * self._scale

    def observe(self, lengths: list[int], seconds: float) -> None:
        """Learn from one forward pass."""
        expected = self._expected(lengths)
        if expected is not None and seconds > 0:
            self._ratios.append(seconds / expected)
            self._scale = statistics.median(self._ratios)

    def _expected(self, lengths: list[int]) -> float | None:
        if self._terms is None:
            return None
        fixed, per_row, per_token = self._terms
        seconds = fixed + per_row * len(lengths) + per_token * _tokens(self._rule, lengths)
        # Far from the profile's points a line may pass below zero, which says nothing of a time.
        return seconds if seconds > 0 else None


def _tokens(rule: CostRule, lengths: list[int]) -> int:
    if rule is CostRule.ROWS:
        return 0
    return sum(lengths) if rule is CostRule.PACKED else len(lengths) * max(lengths)


def _fit(profile: Profile) -> tuple[float, float, float] | None:
    """Least squares on relative errors: a long batch must not drown the short ones."""
    tokens = [_tokens(profile.cost_rule, [p.length] * p.rows) for p in profile.points]
    terms = np.array([[1.0, p.rows, t] for p, t in zip(profile.points, tokens, strict=True)])
    seconds = np.array([p.seconds for p in profile.points])
    if not np.all(seconds > 0):
        return None
    solution, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(seconds)), rcond=None)
    fitted = (terms @ solution) / seconds
    # A fit that is wild somewhere would hand batches over at absurd times: better none at all.
    if not np.all((fitted > 0.25) & (fitted < 4.0)):
        return None
    fixed, per_row, per_token = (float(value) for value in solution)
    return (fixed, per_row, per_token) if math.isfinite(fixed) else None
