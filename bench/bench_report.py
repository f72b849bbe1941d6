"""The common form in which every benchmark is called and reports: a table, and JSON for machines.

Called by the benchmark scripts beside it. It knows figures and goals, not where they come from.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. `goal` is a sentence such as "at least 97"; both it and `holds` are
    None for a figure that is reported without a goal.
    """

    name: str
    value: float
    unit: str
    goal: str | None = None
    holds: bool | None = None
    rounds: tuple[float, ...] = ()
    """What the rounds measured of which `value` is the median; shown in the table only."""

    def __post_init__(self) -> None:
        if (self.goal is None) != (self.holds is None):
            raise ValueError(f"{self.name}: goal and holds are given together or not at all")


def at_least(name: str, value: float, unit: str, bound: float) -> Figure:
    """A figure that should not be below `bound`; NaN, nothing measured, does not hold."""
    goal = f"at least {bound:.4g}"
    return Figure(name=name, value=value, unit=unit, goal=goal, holds=bool(value >= bound))


def at_most(name: str, value: float, unit: str, bound: float) -> Figure:
    """A figure that should not be above `bound`; NaN, nothing measured, does not hold."""
    goal = f"at most {bound:.4g}"
    return Figure(name=name, value=value, unit=unit, goal=goal, holds=bool(value <= bound))


def plain(name: str, unit: str) -> Callable[[float], Figure]:
    """Makes figures that are reported without a goal."""
    return lambda value: Figure(name=name, value=value, unit=unit)


def of_rounds(figure: Callable[[float], Figure], values: Iterable[float]) -> Figure:
    """The figure that is made of the median of rounds, and what they were."""
    rounds = tuple(values)
    return replace(figure(median_of(rounds)), rounds=rounds)


def median_of(values: Iterable[float]) -> float:
    """The median of all rounds; NaN if one of them measured nothing, wherever it would sort."""
    rounds = list(values)
    return math.nan if any(map(math.isnan, rounds)) else statistics.median(rounds)


def new_parser(description: str) -> argparse.ArgumentParser:
    """Reads the options that every benchmark has: `quick` and `json`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="within a minute, rougher")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures here")
    return parser


def tell(what: str) -> None:
    """How far a long run is, and how busy the machine."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.1f}: {what}\n")


def report(figures: Sequence[Figure], json_file: Path | None) -> int:
    """Print the table and write the file, if any.

    Returns the exit code: 0 whether the goals hold or not, since a figure is not a test.
    """
    print_table(figures)
    if json_file is not None:
        write_json(json_file, figures)
    return 0


def print_table(figures: Sequence[Figure]) -> None:
    """Print one line per figure, in the order given, columns aligned."""
    spread = "rounds" if any(figure.rounds for figure in figures) else ""
    rows = [("figure", "value", "unit", "goal", "holds", spread)]
    for figure in figures:
        holds = {None: "", True: "yes", False: "NO"}[figure.holds]
        goal = figure.goal or ""
        value, rounds = _shown(figure.value), _spread(figure.rounds)
        rows.append((figure.name, value, figure.unit, goal, holds, rounds))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, value, *others in rows:
        rest = (f"{text:<{width}}" for text, width in zip(others, widths[2:], strict=True))
        print("  ".join([f"{name:<{widths[0]}}", f"{value:>{widths[1]}}", *rest]).rstrip())


def write_json(path: Path, figures: Sequence[Figure]) -> None:
    """Write the figures as a list of objects; a value that is not finite becomes null.

    The file appears whole or not at all.
    """
    document = [
        {
            "name": figure.name,
            "value": figure.value if math.isfinite(figure.value) else None,
            "unit": figure.unit,
            "goal": figure.goal,
            "holds": figure.holds,
        }
        for figure in figures
    ]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _spread(rounds: Sequence[float]) -> str:
    return f"{_shown(min(rounds))} to {_shown(max(rounds))}" if rounds else ""


def _shown(value: float) -> str:
    """Four significant digits or all digits of the whole part, whichever is more."""
    if not math.isfinite(value):
        return "none"
    digits = 0 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"
