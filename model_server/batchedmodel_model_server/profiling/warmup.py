"""Runs a few batches before the model is called ready, and keeps their times as its profile.

The first pass over a shape pays for allocation and the choice of kernels, those after it are the
samples. A grid first, its smallest shapes before the others; then, for a few seconds, where the
times may jump. A shape that does not fit into what is left of the time, or of the
memory as far as smaller ones tell, is skipped. Where an earlier process has measured the same
model on the same machine, one shape is run to see whether its times still hold.
"""

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from typing import Final

import numpy as np

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import FittedCurve, Profile, ProfilePoint
from batchedmodel_model_server.batching.examples import examples
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, ForwardFailed, OutOfMemory
from batchedmodel_model_server.execution.forward import LoadedModel, forward
from batchedmodel_model_server.execution.memory import MemoryBudget, MemoryCap, meter_of
from batchedmodel_model_server.profiling.shapes import expected_seconds, looks, shapes, steps

BUDGET_SECONDS: Final = 15.0
LOOKING_SECONDS: Final = 3.0  # of them, for where the times may jump
_SHORT: Final = 16
_PASSES: Final = 2
_SAMPLES: Final = 3
_CHEAP_SECONDS: Final = 0.1  # shapes below it are sampled more than once: short times are noisy
_FEW_TIMES: Final = 4.0  # the smallest shape: what batches of even a slow model are longer than
_DRIFT: Final = 2.0  # a machine that is this much slower or faster than its profile is another one
_CHECKED_SECONDS: Final = 0.05  # a shape that takes about as long is long enough to be judged by
_TERMS: Final = 4  # of the curve
_BETTER: Final = 1e-9  # of squared relative errors: what rounding alone may gain
_PERCENTILE: Final = 95
_FARTHEST: Final = 2**40  # as the contract bounds it; a slope of rounding errors has no knee
_log = logging.getLogger(__name__)

Clock = Callable[[], float]


def warm_up(
    model: LoadedModel,
    max_rows: int,
    cap: MemoryCap,
    budget_seconds: float = BUDGET_SECONDS,
    clock: Clock = time.monotonic,
    *,
    longest_pass: float = math.inf,
    budget: MemoryBudget | None = None,
) -> Profile:
    """The profile up to `max_rows`, on the compute thread; teaches `cap` what does not fit.

    A pass is left out if it is expected to take longer than `longest_pass` seconds and than a few
    times the smallest shape: the curve needs more than one point to go on beyond them.

    Raises `CannotLoad` when a batch of examples fails: real ones would, too; and `DeviceLost`.
    """
    rule = model.declaration.cost_rule
    budget = MemoryBudget(meter_of(model.device)) if budget is None else budget
    grid = shapes(max_rows, lengths(model))
    run = _Run(model, cap, budget, clock, longest_pass)
    points = run.points
    until = clock() + budget_seconds
    for rows, length in grid:
        run.measure(rows, length, until)
    until = min(until, clock() + LOOKING_SECONDS)
    for rows, length in looks(points):
        run.measure(rows, length, until)
    largest = max(rule.paid(rows=n, longest=length, total=n * length) for n, length in grid)
    if cap.cost is None and budget.cost is not None and budget.cost < largest:
        cap.begin_with(budget.cost)
    points.sort(key=lambda point: (point.rows, point.length))
    return Profile(
        cost_rule=rule,
        device=model.device,
        points=tuple(points),
        max_cost=cap.cost,
        curve=fitted(rule, points),
    )


class _Run:
    """What one warm-up has measured so far, and what it leaves out from now on."""

    def __init__(
        self,
        model: LoadedModel,
        cap: MemoryCap,
        budget: MemoryBudget,
        clock: Clock,
        longest_pass: float,
    ) -> None:
        self.points: Final[list[ProfilePoint]] = []
        self._model = model
        self._cap = cap
        self._budget = budget
        self._clock = clock
        self._longest_pass = longest_pass
        self._too_long: float = math.inf

    def measure(self, rows: int, length: int, until: float) -> None:
        """Add this shape's time to the points, unless it takes too long or does not fit."""
        points, cap = self.points, self._cap
        cost = self._model.declaration.cost_rule.paid(
            rows=rows, longest=length, total=rows * length
        )
        if length >= self._too_long or (cap.cost is not None and cost > cap.cost):
            return
        seconds = self._model.handler.predicted_seconds(rows, length)
        if seconds is None:
            left = until - self._clock()
            expected = expected_seconds(points, rows * length)
            if points and expected > max(self._longest_pass, _FEW_TIMES * points[0].seconds):
                _log.info("no warm-up of %d x %d: it may take %.2f s", rows, length, expected)
                return
            if points and _PASSES * expected > left:
                _log.info("no warm-up of %d x %d: %.1f s are left", rows, length, max(0.0, left))
                return
            if self._budget.cost is not None and cost > self._budget.cost:
                _log.info("no warm-up of %d x %d: it would not fit the memory", rows, length)
                return
            try:
                seconds = _measure(self._model, rows, length, self._clock)
            except OutOfMemory as error:
                if not points:
                    raise CannotLoad(f"not even one item fits: {error}") from None
                _log.warning("%d x %d does not fit: %s", rows, length, error)
                if rows == 1:
                    self._too_long = length
                else:
                    cap.outgrown([cost])
                return
            self._budget.ran(cost)
        points.append(ProfilePoint(rows=rows, length=length, seconds=seconds))


def still_holds(model: LoadedModel, known: Profile, clock: Clock = time.monotonic) -> bool:
    """Whether one shape takes about as long as `known` says; runs it a few times.

    Raises `CannotLoad` and `DeviceLost` as `warm_up` does.
    """
    measured = [point for point in known.points if point.seconds > 0]
    if not measured:
        return False
    point = min(measured, key=lambda each: abs(math.log(each.seconds / _CHECKED_SECONDS)))
    passes = _passes(model, point.rows, point.length, clock)
    try:
        next(passes)
        ratio = math.inf
        # What else runs on the machine may slow a pass down, but nothing makes one faster.
        for seconds in islice(passes, _SAMPLES):
            ratio = min(ratio, seconds / point.seconds)
            if ratio <= _DRIFT:
                break
    except OutOfMemory:
        return False
    said = f"{point.rows} x {point.length} takes {ratio:.2f} of the time measured earlier"
    if 1 / _DRIFT <= ratio <= _DRIFT:
        _log.info("%s: the profile holds", said)
        return True
    _log.warning("%s: measuring anew", said)
    return False


def lengths(model: LoadedModel) -> tuple[int, ...]:
    """From a short to the longest length of an item; one where lengths do not matter."""
    declaration, text = model.declaration, model.handler.text
    bounds = declaration.bounds
    if declaration.cost_rule is CostRule.ROWS or not bounds:
        return (1,)
    least = declaration.length_of({letter: size for letter, (size, _) in bounds.items()})
    longest = declaration.length_of({letter: size for letter, (_, size) in bounds.items()})
    if text is not None:
        longest = min(longest, text.max_tokens)
    wanted = steps(min(max(_SHORT, least), longest), longest)
    # A product of two sizes is not any number.
    possible = {declaration.length_of(declaration.sizes_of(length)) for length in wanted}
    return tuple(sorted(possible))


def _measure(model: LoadedModel, rows: int, length: int, clock: Clock) -> float:
    """Seconds of a pass over this shape."""
    passes = _passes(model, rows, length, clock)
    next(passes)
    samples = [next(passes)]
    while len(samples) < _SAMPLES and samples[-1] < _CHEAP_SECONDS:
        samples.append(next(passes))
    return statistics.median(samples)


def _passes(model: LoadedModel, rows: int, length: int, clock: Clock) -> Iterator[float]:
    """Runs one batch again and again, and gives the seconds of each time."""
    batch = examples(model.declaration, rows, length)
    while True:
        began = clock()
        try:
            forward(model, batch, began)
        except (DeviceLost, OutOfMemory):
            raise
        except ForwardFailed as error:
            _log.error("the warm-up failed: %s", error.trace)
            raise CannotLoad(f"a batch of {rows} x {length} failed in warm-up: {error}") from error
        yield clock() - began


def fitted(rule: CostRule, points: Sequence[ProfilePoint]) -> FittedCurve | None:
    """The curve through a warm-up's points; None when nothing was measured.

    seconds = a + b*rows + c*rows*length + d*rows*length^2, and no term is below zero. The last one
    is attention, whose work grows with the square of the length. Schedulers go by the points
    themselves; people and dashboards read the curve, and its knee says how large a batch is worth
    being.

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
    slope = per_token or per_row
    return FittedCurve(
        fixed=fixed,
        per_row=per_row,
        per_token=per_token,
        per_square=per_square,
        mean_error=float(errors.mean()),
        p95_error=float(np.percentile(errors, _PERCENTILE)),
        # Where what grows with the batch has become as much as what every batch costs.
        knee=min(_FARTHEST, max(1, round(fixed / slope))) if slope > 0 else None,
    )
