"""Which waiting texts may begin to run, where each needs its adapter in one of few slots. Pure.

A slot is held for as long as a text of its adapter runs, so adapters with a steady stream of texts
could keep others out for ever. Where a text has waited too long for a slot, nothing more begins of
the adapter with the fewest running texts, until those have ended and its slot is free.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

PATIENCE_SECONDS: Final = 1.0


class WaitingText(NamedTuple):
    """A text that does not run, as far as adapters matter."""

    adapter: int
    """0 for a text without one."""
    since: float
    """When it came."""


def may_begin(
    waiting: Sequence[WaitingText], running: Mapping[int, int], slots: int, now: float
) -> list[bool]:
    """For each waiting text, in the order of their turns, whether it may begin.

    All that may can run at the same time. `running`: how many texts of each adapter run.
    """
    in_slots = {number for number, texts in running.items() if number and texts}
    adapters = set(in_slots)
    closing: set[int] = set()
    for text in waiting:
        adapter = text.adapter
        if not adapter or adapter in adapters or len(adapters) < slots:
            adapters.add(adapter)
            adapters.discard(0)
        elif now - text.since >= PATIENCE_SECONDS:
            open_ones = in_slots - closing
            if open_ones:
                closing.add(min(open_ones, key=lambda number: (running[number], number)))
    # A free slot goes to the first text that waits; one that is to become free goes to none.
    return [not text.adapter or text.adapter in adapters - closing for text in waiting]
