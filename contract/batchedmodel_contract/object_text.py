"""Reads parts of Kubernetes' objects out of their JSON, whatever else stands in it.

Used by the operator and the autoscaler for all that an API server hands out. Python's parser ends
with `RecursionError` at a thousand nested brackets, of which API servers take nine thousand, and
makes 34 MiB of 1.4 MB of empty lists. So values that nobody asks for are passed over as bytes, and
those that somebody asks for are parsed within bounds. Every byte is looked at a few times at most:
the patterns go back over a bounded part.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

DEEPEST: Final = 64
"""Nested brackets in a value. Kubernetes' own types stay below twenty."""
LARGEST_PART: Final = 524_288
"""Bytes of a value that is parsed at one go."""
LARGEST_OF_MANY: Final = 16_384
"""Bytes of a value of an object among many that are held at once, such as those of a page."""
MOST_CONTAINERS: Final = 20_000
"""Lists and objects in a value that is parsed: an empty one has two bytes and takes sixty."""
LARGE: Final = 65_536
"""Bytes of a text that takes milliseconds to read: an event loop leaves it to a thread."""
LARGEST_OBJECT: Final = 16_777_216
"""Bytes. An API server keeps 1.5 MB by default, and JSON writes some characters in six bytes."""

_PLAIN: Final = rb'[^"\[\]{}]++'
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# Python 3.11.2, which Debian has, loses what it found in a possessive repeat of alternatives: so
# runs are plain repeats, and what they could go back over is bounded by their number.
_FLAT: Final = rb"(?:" + _PLAIN + rb"|" + _STRING + rb"){0,256}"
_FLAT_RUN: Final = re.compile(_FLAT, re.DOTALL)
# With lists and objects that hold no others, and then all brackets in a row: few steps are left.
# It matches anything, if only with nothing, and so goes back over nothing.
_STEP: Final = re.compile(
    rb"(?:" + _PLAIN + rb"|" + _STRING + rb"|\{" + _FLAT + rb"\}|\[" + _FLAT + rb"\]){0,256}"
    rb"([\[{]*)([\]}]*)",
    re.DOTALL,
)
_KEY: Final = re.compile(rb"\s*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
_SCALAR: Final = re.compile(rb"\s*+(?:" + _STRING + rb'|[^\s",:\[\]{}]++)', re.DOTALL)
_OPEN: Final = re.compile(rb"\s*+\{\s*+")
_COMMA: Final = re.compile(rb"\s*+,")
_CLOSE: Final = re.compile(rb"\s*+\}\s*+")
_OPENING: Final = b"{["

Wanted: TypeAlias = Mapping[str, "Wanted | None"]
"""The fields to be read, by name; None: with all that is in it."""


class Unreadable(ValueError):
    """The text is no JSON, or more of it than is read; the message is a sentence's end."""


def members(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and values of an object, the values as they are written. Raises `Unreadable`."""
    opening = _OPEN.match(text)
    if opening is None:
        raise Unreadable("is no object")
    at = opening.end()
    if _CLOSE.fullmatch(text, at):
        return
    while True:
        key = _KEY.match(text, at)
        if key is None:
            raise Unreadable("is not JSON")
        end, _ = _measured(text, key.end())
        yield _loaded(key[1]), text[key.end() : end]
        comma = _COMMA.match(text, end)
        if comma is None:
            break
        at = comma.end()
    if not _CLOSE.fullmatch(text, end):
        raise Unreadable("is not JSON")


def parsed(text: bytes, *, largest: int = LARGEST_PART) -> Any:
    """A value with all that is in it; raises `Unreadable` where it is too large or too deep."""
    if len(text) > largest:
        raise Unreadable(f"has {len(text)} bytes as JSON, more than the {largest} that are read")
    _, depth = _measured(text, 0)
    if depth > DEEPEST:
        raise Unreadable(f"is nested {depth} deep, more than the {DEEPEST} that are read")
    containers = text.count(b"[") + text.count(b"{")
    if containers > MOST_CONTAINERS:
        raise Unreadable(
            f"has {containers} lists and objects, more than the {MOST_CONTAINERS} that are read"
        )
    return _loaded(text)


def pick(text: bytes, wanted: Wanted, *, largest: int = LARGEST_PART) -> dict[str, Any]:
    """Of an object the wanted fields only, as far as they are there.

    Raises `Unreadable`, also where one of them has more than `largest` bytes.
    """
    found: dict[str, Any] = {}
    for name, value in members(text):
        if name not in wanted:
            continue
        inner = wanted[name]
        try:
            whole = inner is None or not value.startswith(b"{")
            if whole or inner is None:
                found[name] = parsed(value, largest=largest)
            else:
                found[name] = pick(value, inner, largest=largest)
        except Unreadable as error:
            raise Unreadable(f"{name} {error}") from error
    return found


def all_but(
    text: bytes, unwanted: Collection[str], *, largest: int = LARGEST_PART
) -> dict[str, Any]:
    """An object without some fields of its metadata. Raises `Unreadable`."""
    found: dict[str, Any] = {}
    for name, value in members(text):
        try:
            if name == "metadata" and value.startswith(b"{"):
                inner = members(value)
                found[name] = {
                    key: parsed(one, largest=largest) for key, one in inner if key not in unwanted
                }
            else:
                found[name] = parsed(value, largest=largest)
        except Unreadable as error:
            raise Unreadable(f"{name} {error}") from error
    return found


class ItemSplitter:
    """Takes a list as it arrives and gives its items one at a time, as they are written.

    So no more than one item is held, however many there are.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0
        self._depth = 0
        self._begin: int | None = None
        """Where in the buffer the present item begins."""
        self._within = False
        """Whether it is in the list of items."""
        self._envelope = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The items that end in this chunk; to be used up. Raises `Unreadable`."""
        self._buffer += chunk
        while True:
            if self._begin is not None:
                self._at, self._depth, _ = _within(
                    self._buffer, self._at, depth=self._depth, least=2
                )
                if self._depth > 2:
                    break
                item = self._buffer[self._begin : self._at]
                self._begin = None
                yield item
            bracket = self._next()
            if bracket is None:
                break
            if bracket in _OPENING:
                self._opens(bracket)
                continue
            self._depth -= 1
            if self._within and self._depth == 1:
                self._drop(self._at - 1)
                self._within = False
        if self._within:
            self._drop(self._begin if self._begin is not None else self._at)
        else:
            self._keep(self._at)
        if len(self._buffer) > LARGEST_OBJECT:
            raise Unreadable(f"has more than {LARGEST_OBJECT} bytes as JSON")

    def rest(self) -> dict[str, Any]:
        """The list without its items, at the end. Raises `Unreadable` where it is not all here."""
        if self._depth or self._within or not self._envelope:
            raise Unreadable("ends in its middle")
        found = parsed(bytes(self._envelope + self._buffer))
        if not isinstance(found, dict):
            raise Unreadable("is no object")
        return found

    def _next(self) -> int | None:
        self._at = _passed(self._buffer, self._at)
        # A string whose end is still to come is looked at again.
        if self._at >= len(self._buffer) or self._buffer[self._at] == ord('"'):
            return None
        self._at += 1
        return self._buffer[self._at - 1]

    def _opens(self, bracket: int) -> None:
        if self._depth == 1 and bracket == ord("["):
            self._keep(self._at)
            self._within = True
        elif self._depth == 2 and self._within:
            self._begin = self._at - 1
        self._depth += 1

    def _keep(self, at: int) -> None:
        """What is before is the list's own."""
        self._envelope += self._buffer[:at]
        if len(self._envelope) > LARGEST_PART:
            raise Unreadable(f"has more than {LARGEST_PART} bytes beside its items")
        self._drop(at)

    def _drop(self, at: int) -> None:
        self._buffer = self._buffer[at:]
        self._at -= at
        if self._begin is not None:
            self._begin -= at


class LineSplitter:
    """Takes the messages of a watch as they arrive and gives them one line at a time."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that end in this chunk; to be used up. Raises `Unreadable`."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            whole = b"".join((*self._rest, line))
            self._rest, self._held = [], 0
            if whole:
                yield whole
        self._rest.append(rest)
        self._held += len(rest)
        if self._held > LARGEST_OBJECT:
            raise Unreadable(f"has a message of more than {LARGEST_OBJECT} bytes")


def _measured(text: bytes, at: int) -> tuple[int, int]:
    """Where the value that begins here ends, and how many brackets deep it is."""
    if text[at : at + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(text, at)
        if scalar is None:
            raise Unreadable("is not JSON")
        return scalar.end(), 0
    end, depth, deepest = _within(text, at + 1, depth=1, least=0)
    if depth:
        raise Unreadable("ends in its middle" if end >= len(text) else "is not JSON")
    # The innermost ones may have been passed over.
    return end, deepest + 1


def _within(text: bytes, at: int, *, depth: int, least: int) -> tuple[int, int, int]:
    """Goes on until the depth falls to `least`, or to where the text or a string is cut off.

    Where that is, how deep it is, and how deep it has been.
    """
    deepest = depth
    while (step := _STEP.match(text, at)) is not None and step.end() > at:
        openings, closings = step.span(1), step.span(2)
        depth += openings[1] - openings[0]
        deepest = max(deepest, depth)
        if closings[1] - closings[0] >= depth - least:
            return closings[0] + depth - least, least, deepest
        depth -= closings[1] - closings[0]
        at = step.end()
    return at, depth, deepest


def _passed(text: bytes, at: int) -> int:
    """Where the flat runs end that begin here."""
    while (run := _FLAT_RUN.match(text, at)) is not None and run.end() > at:
        at = run.end()
    return at


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable("is not JSON") from error
