"""Whose turn a device has that computes steps of texts and batches, and how long a batch may run.

While both wait, each has a half of the device's time, as far as the target between tokens allows:
between two steps batches run no longer than the target leaves beside a step. Where that is little
they still have two fifths, as steps that fill the target would leave them nothing.

A row cannot be cut. One that takes longer runs whole, and steps catch up. Of what took very long,
as where the process was stopped, neither side catches up more than some rows' time.
"""

from typing import Final

DEFAULT_TOKEN_SECONDS: Final = 0.18
"""Target between two tokens where none is set: still faster than most people read."""
_LEAST_OVER_STEPS: Final = 2 / 3
"""Seconds of batches for each second of steps, at least: two fifths of the device."""

MOST_OWED_SECONDS: Final = 2.0
"""That one side may have had more than its share, and the other catches up."""


class DeviceShares:
    """What each of the two had of the device. Times are in seconds."""

    def __init__(self) -> None:
        self._step = 0.0
        """That the last step took."""
        self._since_step = 0.0
        """That batches took since."""
        self._to_half = 0.0
        """That batches had less than steps; below zero: more."""
        self._to_least = 0.0
        """That batches had less than their least share; below zero: more."""

    def for_batch(self, target: float | None, smallest: float) -> float:
        """How long a batch may run now where a step waits as well; 0: the step goes first.

        `target`: seconds between two tokens, if one is set; `smallest`: those of the smallest part
        of the batch, which runs even where it takes longer than what is returned.
        """
        if self._to_half <= 0:
            return 0.0
        beside_step = (DEFAULT_TOKEN_SECONDS if target is None else target) - self._step
        seconds = max(0.0, beside_step - self._since_step, self._to_least)
        return seconds if smallest <= seconds or not self._since_step else 0.0

    def step_ran(self, seconds: float, *, batch_waits: bool) -> None:
        """A step took so long. Batches gain by it only if one waits at its end."""
        self._step, self._since_step = seconds, 0.0
        self._owe(seconds, _LEAST_OVER_STEPS * seconds)
        if not batch_waits:
            self._to_half, self._to_least = min(0.0, self._to_half), min(0.0, self._to_least)

    def batch_ran(self, seconds: float, *, step_waited: bool) -> None:
        """A batch, or a part of one, took so long. Steps gain by it only if one waited for it."""
        self._since_step += seconds
        self._owe(-seconds, -seconds)
        if not step_waited:
            self._to_half, self._to_least = max(0.0, self._to_half), max(0.0, self._to_least)

    def _owe(self, to_half: float, to_least: float) -> None:
        """So much more to batches, within the bound."""
        self._to_half = _bounded(self._to_half + to_half)
        self._to_least = _bounded(self._to_least + to_least)


def _bounded(seconds: float) -> float:
    return max(-MOST_OWED_SECONDS, min(MOST_OWED_SECONDS, seconds))
