"""Runs a few batches before the model is called ready, and keeps their times as its profile.

The first pass over a shape pays for allocation and the choice of kernels, the second is the
sample. Smallest shapes first; a shape that does not fit into what is left of the time is skipped.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from batchedmodel_contract.description import CostRule
from batchedmodel_contract.profile import Profile, ProfilePoint
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, ForwardFailed, OutOfMemory
from batchedmodel_model_server.examples import examples
from batchedmodel_model_server.forward import LoadedModel, forward
from batchedmodel_model_server.memory import MemoryCap

BUDGET_SECONDS: Final = 15.0
_SHORT: Final = 16
_PASSES: Final = 2
_log = logging.getLogger(__name__)

Shape = tuple[int, int]
"""Rows, and the length of each."""


def warm_up(
    model: LoadedModel,
    max_rows: int,
    cap: MemoryCap,
    budget_seconds: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Profile:
    """The profile up to `max_rows`, on the compute thread; teaches `cap` what did not fit.

    Raises `CannotLoad` when a batch of examples fails: real ones would, too; and `DeviceLost`.
    """
    rule = model.declaration.cost_rule
    deadline = clock() + budget_seconds
    points: list[ProfilePoint] = []
    too_long: float = math.inf
    for rows, length in shapes(max_rows, lengths(model)):
        cost = rule.paid(rows=rows, longest=length, total=rows * length)
        if length >= too_long or (cap.cost is not None and cost > cap.cost):
            continue
        seconds = model.handler.predicted_seconds(rows, length)
        if seconds is None:
            left = deadline - clock()
            expected = _PASSES * expected_seconds(points, rows * length)
            if points and expected > left:
                _log.info("no warm-up of %d x %d: %.1f s are left", rows, length, max(0.0, left))
                continue
            try:
                seconds = _measure(model, rows, length, clock)
            except OutOfMemory as error:
                if not points:
                    raise CannotLoad(f"not even one item fits: {error}") from None
                _log.warning("%d x %d does not fit: %s", rows, length, error)
                if rows == 1:
                    too_long = length
                else:
                    cap.outgrown([cost])
                continue
        points.append(ProfilePoint(rows=rows, length=length, seconds=seconds))
    points.sort(key=lambda point: (point.rows, point.length))
    return Profile(cost_rule=rule, device=model.device, points=tuple(points), max_cost=cap.cost)


def lengths(model: LoadedModel) -> tuple[int, ...]:
    """A short, a middling and the longest length of an item; one where lengths do not matter."""
    declaration, text = model.declaration, model.handler.text
    if declaration.cost_rule is CostRule.ROWS:
        return (1,)
    bounds = [spec.max for spec in declaration.inputs.values() if spec.max is not None]
    longest = min([*bounds, text.max_tokens] if text else bounds)
    short = min(_SHORT, longest)
    return tuple(sorted({short, round(math.sqrt(short * longest)), longest}))


def shapes(max_rows: int, of_lengths: tuple[int, ...]) -> list[Shape]:
    """One row, some and as many as allowed, of each length; the least work first."""
    counts = {1, round(math.sqrt(max_rows)), max_rows}
    return sorted(
        ((rows, length) for rows in counts for length in of_lengths),
        key=lambda shape: (shape[0] * shape[1], shape),
    )


def expected_seconds(points: list[ProfilePoint], work: int) -> float:
    """How long a pass over `work` tokens takes, by the largest one measured so far."""
    if not points:
        return 0.0
    last = points[-1]
    return last.seconds * max(1.0, work / (last.rows * last.length))


def _measure(model: LoadedModel, rows: int, length: int, clock: Callable[[], float]) -> float:
    batch = examples(model.declaration, rows, length)
    seconds = 0.0
    for _ in range(_PASSES):
        began = clock()
        try:
            forward(model, batch, began)
        except (DeviceLost, OutOfMemory):
            raise
        except ForwardFailed as error:
            _log.error("the warm-up failed: %s", error.trace)
            raise CannotLoad(f"a batch of {rows} x {length} failed in warm-up: {error}") from error
        seconds = clock() - began
    return seconds
