"""The arguments of `simulate` that need a rule of their own, as `argparse` types.

Pure: a text in, a value out, or the rule that it breaks.
"""

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LENGTHS_FORM: Final = "N or lognormal:MEDIAN,SIGMA"

_LONGEST: Final = 2**31
_WIDEST_SIGMA: Final = 5.0
_NUMBER: Final = r"\d{1,10}(?:\.\d{1,9})?"
_LOGNORMAL: Final = re.compile(rf"lognormal:({_NUMBER}),({_NUMBER})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsWish:
    """All of one length, or lognormal ones."""

    median: float
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0: all have the median's length."""


def lengths(text: str) -> LengthsWish:
    """`64` or `lognormal:64,0.8`."""
    if text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= _LONGEST:
        return LengthsWish(median=int(text))
    found = _LOGNORMAL.fullmatch(text)
    if found:
        wish = LengthsWish(median=float(found[1]), sigma=float(found[2]))
        if 1 <= wish.median <= _LONGEST and 0 < wish.sigma <= _WIDEST_SIGMA:
            return wish
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a whole number from 1 to {_LONGEST}, nor lognormal:MEDIAN,SIGMA "
        f"with a median in these bounds and a sigma above 0 and up to {_WIDEST_SIGMA:g}"
    )


def number(least: float, most: float) -> Callable[[str], float]:
    """A reader of numbers within these bounds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers within these bounds."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")

    return read
