"""Draws `objectives.svg`: what is in time of long rows against what is in time of all.

`objectives.json` holds what `bench/frontier.py --json` writes, rounded.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from svg import BLUE, FAINT, INK, dot, line, picture, text

_FILE: Final = Path(__file__).with_suffix(".json")
_LEFT, _TOP, _WIDE, _HIGH = 70.0, 58.0, 620.0, 330.0
_POLICIES: Final = {
    "Work": ("objective: Work", BLUE),
    "Rows": ("objective: Rows", "#2f855a"),
    "plan for work": ("plan for work", "#dd6b20"),
    "plan for rows": ("plan for rows", "#b7791f"),
    "nexus": ("Nexus", FAINT),
}
"""By name in the file: what is written, and the colour."""
_STEPS: Final = range(0, 101, 20)


def figures() -> dict[str, dict[str, tuple[float, float]]]:
    """By policy and load: of all rows and of long rows what is in time, in percent."""
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in _POLICIES}
    values = {one["name"]: one["value"] for one in json.loads(_FILE.read_text("utf-8"))}
    for name, value in values.items():
        what, _, of = name.partition(": ")
        load, _, policy = what.partition(", ")
        if of == "rows in time":
            found[policy][load.removeprefix("load ")] = (
                value,
                values[f"{what}: long rows in time"],
            )
    return found


def content() -> str:
    """What the file should hold."""
    title = "Fairness against rate: long rows in time against all rows in time, by policy and load"
    return picture(960, 450, title, _parts())


def _parts() -> Iterator[str]:
    yield text(14, 26, "Long rows in time against all rows in time, %", bold=True)
    for step in _STEPS:
        x, y = _at(step, step)
        yield line(_LEFT, y, _LEFT + _WIDE, y, "#e4e7eb")
        yield text(_LEFT - 10, y + 4, str(step), anchor="end", fill=FAINT)
        yield text(x, _TOP + _HIGH + 20, str(step), anchor="middle", fill=FAINT)
    yield text(_LEFT + _WIDE, _TOP + _HIGH + 42, "of all rows, %", anchor="end", fill=FAINT)
    yield text(_LEFT, _TOP - 10, "of long rows, %", fill=FAINT)
    for number, (policy, points) in enumerate(figures().items()):
        words, colour = _POLICIES[policy]
        placed = [_at(*point) for point in points.values()]
        for (x1, y1), (x2, y2) in pairwise(placed):
            yield line(x1, y1, x2, y2, colour)
        for load, (x, y) in zip(points, placed, strict=True):
            yield dot(x, y, colour)
            if policy in ("Work", "Rows"):
                yield text(x + 7, y - 6, load, fill=INK)
        y = _TOP + 20 + 24 * number
        yield dot(_LEFT + _WIDE + 40, y - 4, colour)
        yield text(_LEFT + _WIDE + 52, y, words)
    y = _TOP + 20 + 24 * len(_POLICIES) + 10
    for words in ("Numbers: offered, over what the", "device can serve of equal lengths"):
        yield text(_LEFT + _WIDE + 32, y, words, fill=FAINT)
        y += 18


def _at(of_all: float, of_long: float) -> tuple[float, float]:
    return _LEFT + _WIDE * of_all / 100, _TOP + _HIGH * (1 - of_long / 100)


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(content(), "utf-8")
