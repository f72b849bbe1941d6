"""Cuts rows of more adapters than there are slots into passes. Pure."""

from collections.abc import Collection, Sequence


def passes(numbers: Sequence[int], slots: int, resident: Collection[int]) -> list[list[int]]:
    """The rows of each pass, by their adapters' numbers; 0 for a row without one.

    What is on the device goes first, so that it is used before it has to make room.
    """
    named = sorted(set(numbers) - {0}, key=lambda number: (number not in resident, number))
    groups = [named[first : first + slots] for first in range(0, len(named), slots)]
    pass_of = {number: at for at, group in enumerate(groups) for number in group}
    rows: list[list[int]] = [[] for _ in groups] or [[]]
    for row, number in enumerate(numbers):
        rows[pass_of.get(number, 0)].append(row)
    return rows
