"""Rules for lists and mappings; they follow the protocol of `rules`."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.schema.rules import ANY_TEXT, LONGEST_OBJECT_NAME, Broken, Rule, Text

_SHOWN: Final = 64
NOT_ASCENDING: Final = "is not in ascending order without repeats"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list in an order that matters; it is passed on as it is."""

    each: Rule
    at_most: int = 64
    form: str = "a list"

    def read(self, value: object) -> Any:
        if not isinstance(value, list | tuple):
            raise Broken(f"is not {self.form}")
        _refuse_too_many(len(value), self.at_most)
        return [read_part(f"[{at}]", self.each, entry) for at, entry in enumerate(value)]

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class Names(ListOf):
    """A list of names without repeats, usually of Kubernetes objects or no longer than theirs."""

    each: Rule = Text(form="a name", at_most=LONGEST_OBJECT_NAME)
    called: str = "name"
    at_most: int = 16

    def read(self, value: object) -> tuple[str, ...]:
        names = tuple(ListOf.read(self, value))
        refuse_repeats(names)
        return names

    def __str__(self) -> str:
        return f"up to {self.at_most} {self.called}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendingWholes(ListOf):
    """A list of integers, each greater than the one before."""

    def read(self, value: object) -> tuple[int, ...]:
        numbers = tuple(ListOf.read(self, value))
        if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
            raise Broken(NOT_ASCENDING)
        return numbers

    def __str__(self) -> str:
        return f"up to {self.at_most} ascending integers, {self.each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf:
    """A mapping of names to values of one kind; it is kept as pairs in the order of the names."""

    each: Rule
    called: str
    at_most: int = 64
    keys: Text | None = None
    """What the names must be; None: anything."""

    def read(self, value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict):
            raise Broken("is not a mapping")
        _refuse_too_many(len(value), self.at_most)
        found = {}
        for name, part in value.items():
            if not isinstance(name, str):
                raise Broken(f"has a name that is not a string: {name}")
            if self.keys is not None and re.fullmatch(self.keys.pattern or "", name) is None:
                raise Broken(f"has a key that is not {self.keys}: {name[:_SHOWN]}")
            # null means what leaving it out means, as to an API server.
            if part is not None:
                found[name] = read_part(name, self.each, part)
        return tuple(sorted(found.items()))

    def __str__(self) -> str:
        return f"up to {self.at_most} {self.called}"


TEXT_MAP: Final = MapOf(each=ANY_TEXT, called="strings by name")


def _refuse_too_many(count: int, at_most: int) -> None:
    if count > at_most:
        raise Broken(f"has {count} entries, more than the {at_most} allowed")


def refuse_repeats(names: Iterable[object]) -> None:
    """Raise `Broken` where a name is there more than once."""
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise Broken(f"names {repeated[0]} more than once")


def read_part(where: str, rule: Rule, part: object) -> Any:
    """A part of a value, by its own rule; raises `Broken` with where it lies."""
    try:
        return rule.read(part)
    except Broken as broken:
        dot = "." if broken.where and not broken.where.startswith("[") else ""
        raise Broken(broken.why, f"{where}{dot}{broken.where}") from broken
