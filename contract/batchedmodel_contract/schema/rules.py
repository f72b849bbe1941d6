"""The kinds of single values that a manifest field may hold, each with its rule and its message.

`reading` applies them to a manifest, `crds/structural_schema` states them to an API server, and
docs/reference.md is drawn from them. A rule either returns the value in its final form or raises
`Broken` with the end of the sentence.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

LONGEST_OBJECT_NAME: Final = 253
"""Characters in the name of a Kubernetes object."""
LARGEST: Final = 10**15
"""Above all that Kubernetes counts, and the same to all who read JSON."""


class Broken(ValueError):
    """The value breaks the rule; the message completes ``<field>: <value> ...``.

    `where` leads from the value to the part of it that is wrong, empty for the value itself.
    """

    def __init__(self, why: str, where: str = "") -> None:
        self.why = why
        self.where = where
        super().__init__(f"has at {where} a value that {why}" if where else why)


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

    minimum: int = -LARGEST
    maximum: int = LARGEST

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
class Text:
    """A string of a given form."""

    pattern: str | None = None
    """What the whole string must match, in the common part of Python's and Go's syntax, by which
    ``\\w`` is an ASCII character; None: anything."""
    form: str = "a text that is not empty"
    at_least: int = 1
    """Characters; 0: it may be empty."""
    at_most: int = 512

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise Broken("is not a string (quote numbers)")
        if len(value) > self.at_most:
            raise Broken(f"is longer than {self.at_most} characters")
        fits = self.pattern is None or re.fullmatch(self.pattern, value, re.ASCII) is not None
        if len(value) < self.at_least or not fits:
            raise Broken(f"is not {self.form}")
        return value

    def __str__(self) -> str:
        return self.form


ANY_TEXT: Final = Text(at_least=0, at_most=32_768)


def object_name(form: str) -> Text:
    """The name of a Kubernetes object."""
    return Text(pattern=r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", form=form, at_most=LONGEST_OBJECT_NAME)


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
        return ", ".join(self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Yes or no."""

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Broken("is not true or false")
        return value

    def __str__(self) -> str:
        return "true, false"
