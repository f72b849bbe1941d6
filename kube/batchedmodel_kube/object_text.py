"""Reads parts of Kubernetes' objects out of their JSON, whatever else stands in it.

Operator and autoscaler read with it all that an API server hands out. Python's parser fails at a
thousand nested brackets, of which API servers take nine thousand, and makes 34 MiB of 1.4 MB of
empty lists. So values that nobody asks for are skipped as bytes, and the others are parsed within
bounds. All of it takes linear time: patterns go back over a bounded part, and large values are
skipped block by block.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
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
_READ_WHOLE: Final = 32_768
"""Bytes of a text that is parsed whole first, four times as fast; it makes 0.8 MB at most."""
LARGEST_OBJECT: Final = 16_777_216
"""Bytes. An API server keeps 1.5 MB by default, and JSON writes some characters in six bytes."""

_PLAIN: Final = rb'[^"\[\]{}]++'
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# Python 3.11.2, which Debian has, loses what it found in a possessive repeat of alternatives: so
# runs are plain repeats, and what they could go back over is bounded by their number.
_FLAT: Final = rb"(?:" + _PLAIN + rb"|" + _STRING + rb"){0,256}"
_FLAT_RUN: Final = re.compile(_FLAT, re.DOTALL)
# With lists and objects that hold no others: few brackets are left to be counted one by one.
_RUN: Final = re.compile(
    rb"(?:" + _PLAIN + rb"|" + _STRING + rb"|\{" + _FLAT + rb"\}|\[" + _FLAT + rb"\]){0,256}",
    re.DOTALL,
)
_KEY: Final = re.compile(rb"\s*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
_SCALAR: Final = re.compile(rb"\s*+(?:" + _STRING + rb'|[^\s",:\[\]{}]++)', re.DOTALL)
_OPEN: Final = re.compile(rb"\s*+\{\s*+")
_COMMA: Final = re.compile(rb"\s*+,")
_CLOSE: Final = re.compile(rb"\s*+\}\s*+")
_OPENING: Final = b"{["
_CONTAINERS: Final = (dict, list)

_BLOCK: Final = 2_048
"""Bytes that are passed over at one go where nothing ends in them that is looked for."""
_SMALL: Final = 32
"""Brackets after which a value is taken for a large one."""
_PAIRS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_ROW: Final = re.compile(rb"\[+|\]+")
_FEW_PAIRS: Final = 16
"""Of so many brackets less than one pair is left when they are counted row by row."""
_NO_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or all behind a quote without an end: no other quote is tried then."""
_IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)

Wanted: TypeAlias = Mapping[str, "Wanted | None"]
"""The fields to be read, by name; None: with all that is in it."""


class Unreadable(ValueError):
    """The text is no JSON, or more of it than is read; the message is a sentence's end."""


def members(text: bytes, wanted: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Names and values of an object, the values as they are written. Raises `Unreadable`.

    `wanted`: the names of those that are given; None: all of them.
    """
    others = None if wanted is None else _others(tuple(wanted))
    opening = _OPEN.match(text)
    if opening is None:
        raise Unreadable("is no object")
    at = opening.end()
    if _CLOSE.fullmatch(text, at):
        return
    while True:
        if others is not None:
            at = _passed(others, text, at)
        key = _KEY.match(text, at)
        if key is None:
            raise Unreadable("is not JSON")
        end = _end(text, key.end())
        name = _loaded(key[1])
        if wanted is None or name in wanted:
            yield name, text[key.end() : end]
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
    brackets = _NO_TEXT.sub(b"", text).translate(_PAIRS, _NO_BRACKETS)
    *_, depth = _counted(brackets)
    if depth > DEEPEST:
        raise Unreadable(f"is nested {depth} deep, more than the {DEEPEST} that are read")
    containers = brackets.count(b"[")
    if containers > MOST_CONTAINERS:
        raise Unreadable(
            f"has {containers} lists and objects, more than the {MOST_CONTAINERS} that are read"
        )
    return _loaded(text)


def pick(text: bytes, wanted: Wanted, *, largest: int = LARGEST_PART) -> dict[str, Any]:
    """Of an object the wanted fields only, as far as they are there.

    Raises `Unreadable`, also where one of them has more than `largest` bytes.
    """
    if (whole := read_whole(text, largest)) is not None:
        return _picked(whole, wanted)
    found: dict[str, Any] = {}
    for name, value in members(text, wanted):
        inner = wanted[name]
        try:
            if inner is None or not value.startswith(b"{"):
                found[name] = parsed(value, largest=largest)
            else:
                found[name] = pick(value, inner, largest=largest)
        except Unreadable as error:
            raise Unreadable(f"{name} {error}") from error
    return found


def pick_owned(text: bytes, wanted: Wanted, *, largest: int = LARGEST_PART) -> dict[str, Any]:
    """The same, but without owners where they are too many, for users may name thousands.

    Such an object counts as nobody's, and its changes and its end are followed all the same.
    """
    try:
        return pick(text, wanted, largest=largest)
    except Unreadable:
        head = {**(wanted["metadata"] or {})}
        head.pop("ownerReferences", None)
        return pick(text, {**wanted, "metadata": head}, largest=largest)


class ItemSplitter:
    """Takes a list as it arrives and gives its items as they are written; it holds one item."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._depth = 0
        self._begin: int | None = None
        """Where in the buffer the present item begins."""
        self._within = False
        """Whether it is in the list of items."""
        self._near = 0
        """Up to here in the buffer the present item may end."""
        self._in_string = False
        """Whether the part that was read ends within a string."""
        self._envelope = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The items that end in this chunk; to be used up. Raises `Unreadable`."""
        self._buffer += chunk
        while (bracket := self._next()) is not None:
            if bracket in _OPENING:
                self._opens(bracket)
                continue
            self._depth -= 1
            if self._within and self._depth == 2 and self._begin is not None:
                item = bytes(self._buffer[self._begin : self._at])
                self._begin = None
                yield item
            elif self._within and self._depth == 1:
                self._drop(self._at - 1)
                self._within = False
        if self._within:
            self._drop(self._begin if self._begin is not None else self._at)
        else:
            self._keep(self._at)
        if len(self._buffer) > LARGEST_OBJECT:
            raise Unreadable(f"has more than {LARGEST_OBJECT} bytes as JSON")

    def rest(self) -> dict[str, Any]:
        """The list without its items. Raises `Unreadable` where its end has not come."""
        if self._depth or self._within or not self._envelope:
            raise Unreadable("ends in its middle")
        found = parsed(bytes(self._envelope + self._buffer))
        if not isinstance(found, dict):
            raise Unreadable("is no object")
        return found

    def _next(self) -> int | None:
        if self._in_string and not self._leaves_string():
            return None
        pattern = _FLAT_RUN
        if self._begin is not None:
            pattern = _RUN
            if self._at >= self._near:
                self._at, self._depth = _leapt(self._buffer, self._at, self._depth, floor=2)
                self._near = self._at + _BLOCK
        self._at = _passed(pattern, self._buffer, self._at)
        if self._at >= len(self._buffer):
            return None
        self._at += 1
        if self._buffer[self._at - 1] == ord('"'):
            # The string's end is still to come. Its bytes are looked at once, whatever its parts.
            self._in_string = True
            self._leaves_string()
            return None
        return self._buffer[self._at - 1]

    def _leaves_string(self) -> bool:
        inside = _IN_STRING.match(self._buffer, self._at)
        self._at = inside.end() if inside else self._at
        if self._buffer[self._at : self._at + 1] != b'"':
            return False
        self._at += 1
        self._in_string = False
        return True

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
        del self._buffer[:at]
        self._at -= at
        self._near -= at
        if self._begin is not None:
            self._begin -= at


def _end(text: bytes, at: int) -> int:
    """Where the value that begins here ends."""
    if text[at : at + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(text, at)
        if scalar is None:
            raise Unreadable("is not JSON")
        return scalar.end()
    depth, steps, near = 1, 0, 0
    at += 1
    while depth:
        steps += 1
        if steps > _SMALL and at >= near:
            at, depth = _leapt(text, at, depth, floor=0)
            near = at + _BLOCK
        at = _passed(_RUN, text, at)
        if at >= len(text):
            raise Unreadable("ends in its middle")
        if text[at] == ord('"'):
            raise Unreadable("is not JSON")
        depth += 1 if text[at] in _OPENING else -1
        at += 1
    return at


def _leapt(text: bytes | bytearray, at: int, depth: int, *, floor: int) -> tuple[int, int]:
    """Where a block begins in which the depth comes down to `floor`, and the depth there.

    It begins outside of strings, as `at` is.
    """
    while True:
        block = text[at : at + _BLOCK]
        if b"\\" in block:
            block = block.replace(b"\\\\", b"--").replace(b'\\"', b"--")
        if block.count(b'"') % 2:
            # It ends in a string, which the next one begins with.
            block = block[: block.rindex(b'"')]
        if not block:
            return at, depth
        outside = b"".join(block.split(b'"')[::2])
        closing, opening, _ = _counted(outside.translate(_PAIRS, _NO_BRACKETS))
        if depth - closing <= floor:
            return at, depth
        at, depth = at + len(block), depth + opening - closing


def _counted(brackets: bytes) -> tuple[int, int, int]:
    """How many brackets close what was opened before, how many stay open, and how deep they go."""
    passes = 0
    while _FEW_PAIRS * brackets.count(b"[]") > len(brackets):
        # Each time a good part goes, so that all of it takes linear time.
        brackets = brackets.replace(b"[]", b"")
        passes += 1
    # What is left stands in few long rows.
    closing = opening = deepest = 0
    for row in _ROW.findall(brackets):
        if row.startswith(b"["):
            opening += len(row)
            deepest = max(deepest, opening)
        else:
            closing += max(0, len(row) - opening)
            opening = max(0, opening - len(row))
    return closing, opening, passes + deepest


@lru_cache(maxsize=64)
def _others(wanted: tuple[str, ...]) -> re.Pattern[bytes]:
    """Members with other names and without brackets: an object may have tens of thousands."""
    names = b"|".join(re.escape(name.encode()) for name in wanted)
    key = rb'\s*+"(?!(?:' + names + rb')")[^"\\]*+"\s*+:'
    return re.compile(rb"(?:" + key + _SCALAR.pattern + rb"\s*+,){0,256}", re.DOTALL)


def _passed(pattern: re.Pattern[bytes], text: bytes | bytearray, at: int) -> int:
    """Where the runs end that begin here."""
    while (run := pattern.match(text, at)) is not None and run.end() > at:
        at = run.end()
    return at


def read_whole(text: bytes, largest: int) -> dict[str, Any] | None:
    """An object that is surely within all bounds; None where somebody must look closer."""
    if len(text) > min(largest, _READ_WHOLE):
        return None
    try:
        found = _loaded(text)
    except Unreadable:
        return None
    if not isinstance(found, dict):
        return None
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if type(one) is dict else one
        level = [part for part in inner if type(part) in _CONTAINERS]
        if not level:
            return found
    return None


def _picked(whole: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, inner in wanted.items():
        if name not in whole:
            continue
        value = whole[name]
        if inner is not None and isinstance(value, dict):
            value = _picked(value, inner)
        found[name] = value
    return found


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable("is not JSON") from error
