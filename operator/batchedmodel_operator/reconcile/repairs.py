"""How soon a child is put right that somebody else changes again and again. Pure; part of `plan`.

A person's edit is undone at once. A controller of somebody else's that sets its own values after
each repair would have both write without end.
"""

from dataclasses import dataclass
from typing import Final

AT_ONCE: Final = 5
"""Repairs in a row that do not wait."""
_FIRST_DELAY_SECONDS: Final = 2.0
LONGEST_DELAY_SECONDS: Final = 60.0
CALM_SECONDS: Final = 120.0
"""Beyond the delay; whatever is changed after it counts as the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The last one of a child."""

    count: int
    """With those before it in a row."""
    again_at: float
    """Monotonic seconds; the next one comes no sooner."""

    def waits(self, now: float) -> bool:
        """Whether a change that is seen now is not undone yet."""
        return now < self.again_at

    def contested(self, now: float) -> bool:
        """Whether somebody undoes what the repairs do."""
        return self.count > AT_ONCE and self.waits(now)


def repaired(before: Repair | None, now: float) -> Repair:
    """A repair that is made now."""
    in_a_row = before is not None and now - before.again_at <= CALM_SECONDS
    count = before.count + 1 if before is not None and in_a_row else 1
    doublings = min(count - AT_ONCE, 16)
    delay = 0.0 if doublings < 0 else _FIRST_DELAY_SECONDS * 2.0**doublings
    return Repair(count=count, again_at=now + min(delay, LONGEST_DELAY_SECONDS))
