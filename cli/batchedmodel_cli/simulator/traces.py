"""Reads recorded traces, so that a simulation can replay them.

Two forms of CSV with a heading are known: the Azure LLM inference traces (TIMESTAMP, ContextTokens,
GeneratedTokens) and our own (seconds, length and, if wished, output and priority). Other columns
are ignored. The caller reads the file; this module is handed its text.
"""

import csv
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from batchedmodel_cli.simulator.arrivals import Replay
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.queue.items import Priority

_NANOSECONDS: Final = 1_000_000_000
_LATEST: Final = 4_000_000_000  # seconds; in nanoseconds still within 64 bits
_LONGEST: Final = 2**31
_SECOND: Final = timedelta(seconds=1)
_ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - only differences of times count
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00|Z)?", re.ASCII
)
_FORMS: Final = (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("seconds", "length", "output"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded requests in order of arrival; times in nanoseconds, the first at 0."""

    times: tuple[int, ...]
    lengths: tuple[int, ...]
    priorities: tuple[Priority, ...]
    outputs: tuple[int, ...] | None = None
    """Tokens of the answers; None: the trace does not tell."""

    def arrivals(self) -> Replay:
        """Its times as an arrival process, which can be sped up."""
        return Replay(recorded=self.times)


def read_trace(text: str) -> Trace:
    """The trace in a CSV's text, sorted by time; raises `InvalidInput` with line and column."""
    reader = csv.DictReader(text.removeprefix("\ufeff").splitlines(), strict=True)
    try:
        headings = [heading.strip() for heading in reader.fieldnames or ()]
        reader.fieldnames = headings
        time, length, output = form = _form(headings)
        names = {*headings}.intersection((*form, "priority"))
        rows = sorted(_rows(reader, names), key=lambda row: row[time])
    except csv.Error as error:
        raise InvalidInput(
            f"trace: line {reader.reader.line_num}", f"is not CSV: {error}"
        ) from error
    if not rows:
        raise InvalidInput("trace", "must hold at least one request below its heading")
    first, last = rows[0][time], rows[-1][time]
    if last - first > _LATEST * _NANOSECONDS:
        raise InvalidInput("trace", f"must span at most {_LATEST} seconds")
    return Trace(
        times=tuple(row[time] - first for row in rows),
        lengths=tuple(row[length] for row in rows),
        priorities=tuple(Priority(row.get("priority", Priority.NORMAL)) for row in rows),
        outputs=tuple(row[output] for row in rows) if output in headings else None,
    )


def _form(headings: list[str]) -> tuple[str, str, str]:
    """The names of time, length and output."""
    for form in _FORMS:
        if form[0] in headings and form[1] in headings:
            return form
    known = " or ".join(f"{time} and {length}" for time, length, _ in _FORMS)
    raise InvalidInput("trace: line 1", f"must name the columns {known}", ",".join(headings))


def _rows(reader: "csv.DictReader[str]", names: Collection[str]) -> Iterator[dict[str, int]]:
    for cells in reader:
        row = {}
        for name in names:
            read, rule = _COLUMNS[name]
            field, text = f"trace: line {reader.line_num}, column {name}", cells[name]
            if text is None:
                raise InvalidInput(field, "is missing")
            try:
                row[name] = read(text.strip())
            except (ValueError, ArithmeticError) as error:
                raise InvalidInput(field, rule, text.strip()) from error
        yield row


def _timestamp(text: str) -> int:
    parts = _TIMESTAMP.fullmatch(text)
    if parts is None:
        raise ValueError(text)
    fraction = int((parts[2] or "").ljust(9, "0"))
    since = datetime.fromisoformat(parts[1]) - _ANY_DAY
    return since // _SECOND * _NANOSECONDS + fraction


def _seconds(text: str) -> int:
    seconds = Decimal(text)
    if not (seconds.is_finite() and 0 <= seconds <= _LATEST):
        raise ValueError(text)
    return round(seconds * _NANOSECONDS)


def _length(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _LONGEST:
        return int(text)
    raise ValueError(text)


_TOKENS: Final = (_length, f"must be a whole number from 1 to {_LONGEST}")
_COLUMNS: Final[dict[str, tuple[Callable[[str], int], str]]] = {
    "TIMESTAMP": (_timestamp, "must be a time in UTC as 2023-11-16 18:15:46.6805900"),
    "ContextTokens": _TOKENS,
    "GeneratedTokens": _TOKENS,
    "seconds": (_seconds, f"must be a number of seconds from 0 to {_LATEST}"),
    "length": _TOKENS,
    "output": _TOKENS,
    "priority": (lambda text: Priority(int(text)), "must be 1 (high), 2 (normal) or 3 (low)"),
}
"""How the cells of each column are read, and the rule that a wrong one breaks."""
