"""Measures how long batches take: a few before the model is ready, the rest in idle moments.

The first pass over a shape pays for allocation and the choice of kernels, those after it are the
samples. A small and a large shape come first; the rest of a grid, and where the times may jump,
when nobody asks for anything (`idle`). A shape that does not fit into the memory, as far as smaller
ones tell, is skipped. Where an earlier process has measured the same model on the same machine, one
shape is run to see how its times compare.
"""

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_model_server.batching.examples import examples
from batchedmodel_model_server.batching.items import Collated
from batchedmodel_model_server.errors import CannotLoad, ForwardFailed, OutOfMemory, warming_up
from batchedmodel_model_server.execution.forward import LoadedModel, timed
from batchedmodel_model_server.execution.memory import MemoryBudget, MemoryCap, meter_of
from batchedmodel_model_server.profiling.shapes import (
    LONGEST_PASS_SECONDS,
    Shape,
    next_shape,
    shapes,
    steps,
    way_up,
)

FIRST_PASS_SECONDS: Final = 0.1
"""Of the large shape. Where another version serves, its batches wait behind it."""
FEW_TIMES: Final = 4.0  # the smallest shape: what batches of even a slow model are longer than
LOOKING_SECONDS: Final = 3.0  # of passes, for where the times may jump
DRIFT: Final = 2.0  # times that differ by more are not of one machine in one state
_SHORT: Final = 16
_SAMPLES: Final = 3
_CHEAP_SECONDS: Final = 0.1  # shapes below it are sampled more than once: short times are noisy
_FIRST_TIMES: Final = 4.0  # later passes over a shape: what its first pass takes at most
_CHECKED_SECONDS: Final = 0.05  # a shape that takes about as long is long enough to be judged by
_log = logging.getLogger(__name__)

Clock = Callable[[], float]


class WarmUp:
    """What was measured of a model so far, and what is worth measuring yet.

    Used by one thread at a time. It teaches its `cap` what does not fit.
    """

    def __init__(
        self,
        model: LoadedModel,
        max_rows: int,
        cap: MemoryCap,
        clock: Clock = time.monotonic,
        *,
        known: Profile | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`known`: what an earlier process has measured of it."""
        self._model = model
        self._cap = cap
        self._clock = clock
        self._budget = MemoryBudget(meter_of(model.device)) if budget is None else budget
        self._grid: Final = shapes(max_rows, lengths(model))
        self._points = [] if known is None else list(known.points)
        self._tried = {(point.rows, point.length) for point in self._points}
        self._too_long: float = math.inf
        self._looked = 0.0
        self._bound = cap.cost
        """The cap, while it only follows from what smaller shapes took."""

    def begin(self) -> None:
        """Measure what is needed before the model is ready, or all where times are predicted.

        Raises `CannotLoad` when a batch of examples fails: real ones would, too; and `DeviceLost`.
        """
        if self._model.handler.predicted_seconds(1, 1) is not None:
            while (shape := self.next(math.inf)) is not None:
                self._measure(shape)
            return
        self._measure(self._grid[0])
        # The one half way up shows how much memory the largest will take.
        for share in (0.5, 1.0):
            longest = max(FIRST_PASS_SECONDS, self._few_times_the_shortest)
            shape = way_up(self._grid, self._points, longest, share)
            if shape not in self._tried and self._fits(shape):
                self._measure(shape)

    def next(self, longest_seconds: float) -> Shape | None:
        """What to measure now with passes of so long at most; None: nothing."""
        if longest_seconds >= LONGEST_PASS_SECONDS:
            longest_seconds = max(longest_seconds, self._few_times_the_shortest)
        skipped, looks = set(self._tried), self._looked < LOOKING_SECONDS
        while True:
            shape = next_shape(self._grid, self._points, skipped, longest_seconds, looks=looks)
            if shape is None or self._fits(shape):
                return shape
            skipped.add(shape)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left that is worth measuring."""
        return self.next(LONGEST_PASS_SECONDS) is None

    def batch(self, shape: Shape) -> Collated:
        """Examples of this shape."""
        return examples(self._model.declaration, *shape)

    def run(self, batch: Collated) -> float:
        """Seconds of one pass, on the compute thread.

        Raises `OutOfMemory`, `ForwardFailed`, `DeviceLost`.
        """
        return self._metered(replace(self._model, turn=None), batch)

    def measured(self, shape: Shape, passes: Sequence[float]) -> None:
        """Passes over it took so long; the first one does not count."""
        self._add(shape, statistics.median(passes[1:]))
        if shape not in self._grid:
            self._looked += sum(passes)

    def failed(self, shape: Shape, error: ForwardFailed) -> None:
        """It cannot be measured; where the memory is too small for it, others are as well."""
        rows, length = shape
        _log.warning("no time of %d x %d: %s", rows, length, error)
        self._tried.add(shape)
        if isinstance(error, OutOfMemory):
            if rows == 1:
                self._too_long = length
            else:
                self._cap.outgrown([self._cost(shape)])

    def profile(self) -> Profile:
        """What is known by now; the cap follows from it, unless a batch that failed has set it."""
        rule, cap, affordable = self._model.declaration.cost_rule, self._cap, self._budget.cost
        largest = max(map(self._cost, self._grid))
        if cap.cost == self._bound and affordable is not None:
            cap.begin_with(affordable if affordable < largest else None)
            self._bound = cap.cost
        points = sorted(self._points, key=lambda point: (point.rows, point.length))
        return Profile(
            cost_rule=rule,
            device=self._model.device,
            points=tuple(points),
            max_cost=cap.cost,
            partial=not self.is_whole,
        )

    @property
    def _few_times_the_shortest(self) -> float:
        return FEW_TIMES * min((point.seconds for point in self._points), default=0.0)

    def _measure(self, shape: Shape) -> None:
        seconds = self._model.handler.predicted_seconds(*shape)
        if seconds is not None:
            self._add(shape, seconds)
            return
        batch, passes = self.batch(shape), list[float]()
        try:
            with warming_up(f"a batch of {shape[0]} x {shape[1]}"):
                while not enough(passes):
                    passes.append(self._metered(self._model, batch))
        except OutOfMemory as error:
            if not self._points:
                raise CannotLoad(f"not even one item fits: {error}") from None
            self.failed(shape, error)
        else:
            self.measured(shape, passes)

    def _metered(self, model: LoadedModel, batch: Collated) -> float:
        cost = batch.cost(model.declaration, range(batch.rows))
        return self._budget.metered(cost, partial(timed, model, batch, self._clock))

    def _add(self, shape: Shape, seconds: float) -> None:
        self._tried.add(shape)
        self._points.append(ProfilePoint(rows=shape[0], length=shape[1], seconds=seconds))

    def _cost(self, shape: Shape) -> int:
        rows, length = shape
        rule = self._model.declaration.cost_rule
        return rule.paid(rows=rows, longest=length, total=rows * length)

    def _fits(self, shape: Shape) -> bool:
        """Whether the memory should hold it, as far as is known."""
        cap, affordable = self._cap.cost, self._budget.cost
        if cap == self._bound and affordable is not None:
            cap = None  # it follows from less than is known now
        bounds = [bound for bound in (cap, affordable) if bound is not None]
        return shape[1] < self._too_long and self._cost(shape) <= min(bounds, default=math.inf)


def enough(passes: Sequence[float]) -> bool:
    """Whether so many passes over one shape say how long it takes."""
    samples = len(passes) - 1
    return samples >= _SAMPLES or (samples >= 1 and passes[-1] >= _CHEAP_SECONDS)


def slowness(model: LoadedModel, known: Profile, clock: Clock = time.monotonic) -> float | None:
    """How many times as long as `known` says one shape takes; runs it twice.

    Only once where the first pass takes far too long: beside a busy process each takes most of a
    second. None where it does not fit any more. Raises `CannotLoad` and `DeviceLost` as `begin`.
    """
    points = [point for point in known.points if point.seconds > 0]
    if not points:
        return None
    point = min(points, key=lambda each: abs(math.log(each.seconds / _CHECKED_SECONDS)))
    batch = examples(model.declaration, point.rows, point.length)
    shape = f"{point.rows} x {point.length}"
    try:
        with warming_up(f"a batch of {shape}"):
            ratio = timed(model, batch, clock) / point.seconds
            if ratio <= _FIRST_TIMES:
                ratio = timed(model, batch, clock) / point.seconds
    except OutOfMemory:
        return None
    _log.info("%s takes %.2f of the time measured earlier", shape, ratio)
    return ratio


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
