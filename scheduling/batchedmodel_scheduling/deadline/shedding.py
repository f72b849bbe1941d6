"""Which batches to run and what to give up when not all can be in time.

Moore and Hodgson's rule (1968) on batches: run them by deadline; when one would be late, give up
what costs the most time for its worth, either a whole batch or the oldest members of the late one.
Pure; called by the policy with the batches of all keys.
"""

from dataclasses import dataclass
from itertools import accumulate

from batchedmodel_scheduling.deadline.lanes import Entry


@dataclass(slots=True)
class Candidate:
    """Items that would share a batch, in the order in which they would be given up."""

    entries: list[Entry]
    table: list[float]
    """Expected seconds by number of items, before `factor`."""
    without: list[float] | None
    """The same when the first 0, 1, ... items are gone; None where only their number counts."""
    factor: float
    """From expected to safe seconds."""
    due: float
    turn: float
    """Where it stands in the order; before `due` if one that must come after it is due before."""
    seconds: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to run, first batch first; what was given up, and which batches were put off."""

    run: list[Candidate]
    given_up: list[Entry]
    put_off: list[Candidate]


def select(candidates: list[Candidate], start: float) -> Selection:
    """Decide for a device that could begin at `start`; candidates need not be in order."""
    candidates.sort(key=lambda candidate: candidate.turn)
    run: list[Candidate] = []
    given_up: list[Entry] = []
    put_off: list[Candidate] = []
    end = start
    for candidate in candidates:
        run.append(candidate)
        end += candidate.seconds
        while run and end > run[-1].due:
            last = run[-1]
            worst = max(run, key=lambda one: one.seconds / one.weight)
            dropped, loss = _oldest(last, end - last.seconds)
            if not dropped:
                break  # in time after all, but for what rounding made of the sum
            if worst.weight < loss or dropped == len(last.entries):
                run.remove(worst)
                put_off.append(worst)
                end -= worst.seconds
                continue
            end -= last.seconds
            given_up += last.entries[:dropped]
            last.entries = last.entries[dropped:]
            if last.without is not None:
                last.without = last.without[dropped:]
            last.seconds = _seconds(last)
            last.due = min([entry.due for entry in last.entries])
            last.weight -= loss
            end += last.seconds
    return Selection(run=run, given_up=given_up, put_off=put_off)


def _oldest(candidate: Candidate, start: float) -> tuple[int, float]:
    """How many of the first must go so that the rest is in time, and what they are worth."""
    factor, entries = candidate.factor, candidate.entries
    remaining = candidate.without or candidate.table[len(entries) : 0 : -1]
    dues = [entry.due for entry in entries]
    if dues[0] > candidate.due:
        # Priorities stand before due times here: the rest must meet the earliest of all.
        dues = list(accumulate(reversed(dues), min))[::-1]
    loss = 0.0
    for dropped, entry in enumerate(entries):
        if start + remaining[dropped] * factor <= dues[dropped]:
            return dropped, loss
        loss += entry.weight
    return len(entries), loss


def _seconds(candidate: Candidate) -> float:
    if candidate.without is not None:
        return candidate.without[0] * candidate.factor
    return candidate.table[len(candidate.entries)] * candidate.factor
