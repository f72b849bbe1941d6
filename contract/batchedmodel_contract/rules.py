"""The kinds of values a manifest field may hold, each with its rule and its message.

`reading` applies them to a manifest; the settings table of the README is drawn from them. A rule
either returns the value in its final form or raises `Broken` with the end of the sentence.
"""

import itertools
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

_MOST_RESOURCES: Final = 16
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE])?")


class Broken(ValueError):
    """The value breaks the rule; the message completes ``<field>: <value> ...``."""


class Rule(Protocol):
    """What a field's value must satisfy."""

    def read(self, value: object) -> object:
        """The value in its final form; raises `Broken`."""
        ...

    def __str__(self) -> str:
        """The rule in a few words, for tables."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """An integer within bounds, both included."""

    minimum: int
    maximum: int

    def read(self, value: object) -> int:
        # bool is an int to Python, but `maxBatchSize: true` is a slip of the pen.
        if not isinstance(value, int) or isinstance(value, bool):
            raise Broken("is not an integer")
        if value < self.minimum:
            raise Broken(f"is below the minimum {self.minimum}")
        if value > self.maximum:
            raise Broken(f"is above the maximum {self.maximum}")
        return value

    def __str__(self) -> str:
        return f"{self.minimum} to {self.maximum}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """A number within bounds, both included."""

    minimum: float
    maximum: float

    def read(self, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Broken("is not a number")
        if not self.minimum <= value <= self.maximum:
            raise Broken(f"is not within {self}")
        return float(value)

    def __str__(self) -> str:
        return f"{self.minimum:g} to {self.maximum:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendingWholes:
    """A list of integers, each greater than the one before."""

    each: Whole
    at_most: int

    def read(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            raise Broken("is not a list")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        for index, entry in enumerate(value):
            try:
                self.each.read(entry)
            except Broken as broken:
                raise Broken(f"has at [{index}] a value that {broken}") from broken
        if any(later <= earlier for earlier, later in itertools.pairwise(value)):
            raise Broken("is not in ascending order without repeats")
        return tuple(value)

    def __str__(self) -> str:
        return f"up to {self.at_most} ascending integers, {self.each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string of a given form."""

    pattern: str = r"(?s).+"
    form: str = "a text that is not empty"
    at_most: int = 512

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise Broken("is not a string")
        if len(value) > self.at_most:
            raise Broken(f"is longer than {self.at_most} characters")
        if re.fullmatch(self.pattern, value) is None:
            raise Broken(f"is not {self.form}")
        return value

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the members of an enum."""

    of: type[StrEnum]

    def read(self, value: object) -> StrEnum:
        for member in self.of:
            if member == value:
                return member
        raise Broken(f"is not one of {self}")

    def __str__(self) -> str:
        return ", ".join(member.value for member in self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """Kubernetes quantities by resource name, kept as they are written."""

    def read(self, value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            raise Broken("is not a mapping")
        if len(value) > _MOST_RESOURCES:
            raise Broken(f"has {len(value)} entries, more than the {_MOST_RESOURCES} allowed")
        for name, quantity in value.items():
            # `cpu: 1` is a number in YAML and as good as "1" to Kubernetes.
            good = isinstance(quantity, str | int | float) and not isinstance(quantity, bool)
            if not good or _QUANTITY.fullmatch(str(quantity)) is None:
                raise Broken(f"has under {name} a value that is not a quantity such as 500m or 2Gi")
        return tuple(sorted((name, str(quantity)) for name, quantity in value.items()))

    def __str__(self) -> str:
        return "quantities by resource, such as cpu: 500m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """A part that Kubernetes itself understands and judges; it is passed on as it is."""

    of: type[dict[str, object]] | type[list[object]]
    form: str

    def read(self, value: object) -> object:
        if not isinstance(value, self.of):
            raise Broken(f"is not {self.form}")
        return value

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A list of names of Kubernetes objects."""

    at_most: int = 16

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise Broken("is not a list")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        if not all(isinstance(name, str) and name for name in value):
            raise Broken("has an entry that is not a name")
        return tuple(value)

    def __str__(self) -> str:
        return f"up to {self.at_most} names"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMap:
    """A mapping of names to strings."""

    at_most: int = 64

    def read(self, value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            raise Broken("is not a mapping")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        for name, text in value.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise Broken(f"has under {name} a value that is not a string (quote numbers)")
        return tuple(sorted(value.items()))

    def __str__(self) -> str:
        return f"up to {self.at_most} strings by name"
