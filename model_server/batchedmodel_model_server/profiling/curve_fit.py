"""The curve through a warm-up's points: seconds = a + b*rows + c*rows*length + d*rows*length^2.

The last term is attention, whose work grows with the square of the length. Pure; called when the
warm-up ends. Schedulers go by the points themselves; the curve is what people and dashboards read,
and its knee says how large a batch is worth being.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import FittedCurve, ProfilePoint

_TERMS: Final = 4
_BETTER: Final = 1e-9  # of squared relative errors: what rounding alone may gain
_PERCENTILE: Final = 95
_FARTHEST: Final = 2**40  # as the contract bounds it; a slope of rounding errors has no knee


def fitted(rule: CostRule, points: Sequence[ProfilePoint]) -> FittedCurve | None:
    """The best curve without a term below zero; None when nothing was measured.

    Least squares on relative errors, for a long batch must not drown the short ones. Of curves
    that are equally good the one with fewer terms is taken: what the points cannot tell apart, such
    as rows and tokens where there is one length, stays zero.
    """
    known = [point for point in points if point.seconds > 0]
    if not known:
        return None
    rows = np.array([point.rows for point in known], dtype=float)
    lengths = np.array([1 if rule is CostRule.ROWS else p.length for p in known], dtype=float)
    seconds = np.array([point.seconds for point in known])
    tokens = rows * lengths
    columns = np.stack([np.ones_like(rows), rows, tokens, tokens * lengths], 1) / seconds[:, None]
    best, least = np.array([float(np.median(seconds)), 0.0, 0.0, 0.0]), math.inf
    for count in range(1, _TERMS + 1):
        for used in map(list, combinations(range(_TERMS), count)):
            solution, *_ = np.linalg.lstsq(columns[:, used], np.ones(len(known)), rcond=None)
            error = float(np.sum((columns[:, used] @ solution - 1) ** 2))
            if np.all(solution >= 0) and error < least - _BETTER:
                best, least = np.zeros(_TERMS), error
                best[used] = solution
    errors = np.abs(columns @ best - 1)
    fixed, per_row, per_token, per_square = best.tolist()
    return FittedCurve(
        fixed=fixed,
        per_row=per_row,
        per_token=per_token,
        per_square=per_square,
        mean_error=float(errors.mean()),
        p95_error=float(np.percentile(errors, _PERCENTILE)),
        knee=_knee(fixed, per_token or per_row),
    )


def _knee(fixed: float, slope: float) -> int | None:
    """Where what grows with the batch has become as much as what every batch costs."""
    return min(_FARTHEST, max(1, round(fixed / slope))) if slope > 0 else None
