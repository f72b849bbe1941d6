"""Reads recorded traces, so that a simulation can replay them.

Two forms of CSV with a heading are known: the Azure LLM inference traces (TIMESTAMP, ContextTokens,
GeneratedTokens) and our own (seconds, length and, if wished, output and priority). Other columns
are ignored. The caller reads the file; this module is handed its text.
"""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple, TypeVar

from batchedmodel_cli.simulator.arrivals import Replay
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.queue.items import Priority

_Value = TypeVar("_Value")
_NANOSECONDS: Final = 1_000_000_000
_LATEST: Final = 4_000_000_000  # seconds; in nanoseconds still within 64 bits
_LONGEST: Final = 2**31
_SECOND: Final = timedelta(seconds=1)
_ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - only differences of times count
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00|Z)?", re.ASCII
)


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
    reader = csv.reader(text.removeprefix("\ufeff").splitlines(), strict=True)
    try:
        headings = [heading.strip() for heading in next(reader, [])]
        rows = sorted(_rows(reader, headings), key=lambda row: row.at)
    except csv.Error as error:
        raise InvalidInput(f"trace: line {reader.line_num}", f"is not CSV: {error}") from error
    if not rows:
        raise InvalidInput("trace", "must hold at least one request below its heading")
    first, last = rows[0].at, rows[-1].at
    if last - first > _LATEST * _NANOSECONDS:
        raise InvalidInput("trace", f"must span at most {_LATEST} seconds")
    return Trace(
        times=tuple(row.at - first for row in rows),
        lengths=tuple(row.length for row in rows),
        priorities=tuple(row.priority for row in rows),
        outputs=tuple(row.output for row in rows) if rows[0].output else None,
    )


class _Row(NamedTuple):
    at: int
    length: int
    output: int
    """0: the trace does not tell."""
    priority: Priority


def _rows(reader: Iterator[list[str]], headings: list[str]) -> Iterator[_Row]:
    forms = (
        ("TIMESTAMP", "ContextTokens", "GeneratedTokens", _timestamp),
        ("seconds", "length", "output", _seconds),
    )
    form = next((one for one in forms if one[0] in headings and one[1] in headings), None)
    if form is None:
        known = " or ".join(f"{time} and {length}" for time, length, _, _ in forms)
        raise InvalidInput("trace: line 1", f"must name the columns {known}", ",".join(headings))

    time, length, output, to_nanoseconds = form

    def cell(line: int, cells: list[str], heading: str, read: Callable[[str], _Value]) -> _Value:
        field, index = f"trace: line {line}, column {heading}", headings.index(heading)
        if index >= len(cells):
            raise InvalidInput(field, "is missing")
        text = cells[index].strip()
        try:
            return read(text)
        except _BrokenRule as broken:
            raise InvalidInput(field, str(broken), text) from broken

    for line, cells in enumerate(reader, start=2):
        if cells:
            yield _Row(
                at=cell(line, cells, time, to_nanoseconds),
                length=cell(line, cells, length, _length),
                output=cell(line, cells, output, _length) if output in headings else 0,
                priority=(
                    cell(line, cells, "priority", _priority)
                    if "priority" in headings
                    else Priority.NORMAL
                ),
            )


class _BrokenRule(Exception):
    """The rule that a cell breaks."""


def _timestamp(text: str) -> int:
    found = _TIMESTAMP.fullmatch(text)
    try:
        whole = datetime.fromisoformat(found[1]) if found else None
    except ValueError:
        whole = None
    if found is None or whole is None:
        raise _BrokenRule("must be a time in UTC as 2023-11-16 18:15:46.6805900")
    fraction = int((found[2] or "").ljust(9, "0"))
    return (whole - _ANY_DAY) // _SECOND * _NANOSECONDS + fraction


def _seconds(text: str) -> int:
    try:
        seconds = Decimal(text)
    except InvalidOperation:
        seconds = Decimal(-1)
    if not (seconds.is_finite() and 0 <= seconds <= _LATEST):
        raise _BrokenRule(f"must be a number of seconds from 0 to {_LATEST}")
    return round(seconds * _NANOSECONDS)


def _length(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _LONGEST:
        return int(text)
    raise _BrokenRule(f"must be a whole number from 1 to {_LONGEST}")


def _priority(text: str) -> Priority:
    for priority in Priority:
        if text == str(priority.value):
            return priority
    raise _BrokenRule("must be 1 (high), 2 (normal) or 3 (low)")
