"""Figures as a person reads them: rates, times, shares and tables. Pure; for what is printed."""

from collections.abc import Iterator, Sequence
from typing import Final

WHOLE: Final = 1000
"""Tenths of a percent in a whole."""

_SHOWN_AS_SECONDS: Final = 10


def rate(per_second: float) -> str:
    """Of requests a second."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def time(seconds: float) -> str:
    """In milliseconds, or in seconds where these would be many."""
    if seconds >= _SHOWN_AS_SECONDS:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def percent(share: float) -> str:
    """Of a share between 0 and 1."""
    return tenths(round(share * WHOLE), share)


def tenths(count: int, share: float) -> str:
    """Tenths of a percent; 0.0 % and 100.0 % only for a share that is exactly that."""
    if count == 0 and share > 0:
        return "<0.1%"
    return ">99.9%" if count == WHOLE and share < 1 else f"{count / 10:.1f}%"


def printable(text: str) -> str:
    """The text with `?` for each character that has no form of its own."""
    return "".join(one if one.isprintable() else "?" for one in text)


def aligned(rows: Sequence[tuple[str, ...]], *, indent: int) -> Iterator[str]:
    """The lines of a table."""
    # What others named may hold sequences that a terminal obeys.
    shown = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield (" " * indent + "   ".join(cells)).rstrip()
