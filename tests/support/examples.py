"""How many examples a property is tried with."""

from typing import Final

_LEAST: Final = 20
_DAILY_SHARE: Final = 0.25


class Examples:
    """Full numbers of examples, or those of a daily run."""

    def __init__(self) -> None:
        self._share = 1.0

    def daily(self) -> None:
        """From now on a quarter is enough: the nightly run tries them all."""
        self._share = _DAILY_SHARE

    def __call__(self, full: int) -> int:
        """As many as are tried in this run, where `full` are tried in a nightly one."""
        return min(full, max(_LEAST, round(full * self._share)))


examples = Examples()
"""Of this process; set before the first module of tests is imported."""
