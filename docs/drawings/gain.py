"""Draws `gain.svg`: what batching and packing give, by figures of `bench/`.

`gain.json` holds them as `docs/performance.md` quotes them: the median, and the lowest and highest
round. A test compares the two.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from svg import BLUE, FAINT, INK, line, picture, rectangle, text

_FILE: Final = Path(__file__).with_suffix(".json")
_LABELS: Final = {
    "device 1, closed loop 256: rate against it unbatched": (
        "Requests of 256 callers in batches,",
        "not one by one (simulated device)",
    ),
    "lengths mostly short, clip(exp(N(3.2, 0.9)), 6, 256): gain": (
        "32 texts packed, not padded (MiniLM):",
        "mostly short",
    ),
    "lengths uniform 8..256: gain": ("32 texts packed, not padded (MiniLM):", "8 to 256 tokens"),
    "all lengths 64: gain": ("32 texts packed, not padded (MiniLM):", "all of 64 tokens"),
}
_LEFT, _WIDE, _MOST = 290.0, 560.0, 20.0
_TOP, _STEP, _THICK = 62.0, 56.0, 26.0


def figures() -> list[dict[str, Any]]:
    """Those that are drawn, in the order of the bars."""
    found: list[dict[str, Any]] = json.loads(_FILE.read_text("utf-8"))
    return found


def content() -> str:
    """What the file should hold."""
    title = "How many times faster: requests in batches, and batches packed instead of padded"
    return picture(960, 310, title, _bars(figures()))


def _bars(shown: list[dict[str, Any]]) -> Iterator[str]:
    yield text(14, 26, "How many times faster (median; the line spans all rounds)", bold=True)
    bottom = _TOP + _STEP * len(shown) - 14
    yield line(_x(1), _TOP - 10, _x(1), bottom, FAINT, dashed=True)
    yield text(_x(1), bottom + 18, "1 x", anchor="middle", fill=FAINT)
    for number, figure in enumerate(shown):
        y = _TOP + _STEP * number
        for row, words in enumerate(_LABELS[figure["name"]]):
            yield text(_LEFT - 14, y + 10 + 17 * row, words, anchor="end")
        yield rectangle(_LEFT, y, _x(figure["value"]) - _LEFT, _THICK, fill="#90c2e7")
        middle = y + _THICK / 2
        yield line(_x(figure["low"]), middle, _x(figure["high"]), middle, INK)
        edge = _x(max(figure["value"], figure["high"])) + 10
        yield text(edge, middle + 5, f"{figure['value']:.4g} x", bold=True, fill=BLUE)


def _x(value: float) -> float:
    return _LEFT + _WIDE * value / _MOST


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(content(), "utf-8")
