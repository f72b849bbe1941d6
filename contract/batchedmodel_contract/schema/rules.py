"""The kinds of values a manifest field may hold, each with its rule and its message.

`reading` applies them to a manifest, `openapi` states them to an API server, and the settings table
of the README is drawn from them. A rule either returns the value in its final form or raises
`Broken` with the end of the sentence. Whatever `read` refuses its `schema` must refuse too, and the
other way round: one manifest serves on one machine and in a cluster.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

_MOST_RESOURCES: Final = 16
_LONGEST_QUANTITY: Final = 32
_QUANTITY: Final = r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE])?"
LONGEST_OBJECT_NAME: Final = 253
"""Characters in the name of a Kubernetes object."""
_NOT_ASCENDING: Final = "is not in ascending order without repeats"

Schema = dict[str, Any]
"""A part of a structural OpenAPI v3 schema, as a custom resource's definition holds it."""


def anchored(pattern: str) -> str:
    """The pattern as an API server needs it: there, a match anywhere in the text would do."""
    return f"^(?:{pattern})$" if "|" in pattern else f"^{pattern}$"


class Broken(ValueError):
    """The value breaks the rule; the message completes ``<field>: <value> ...``."""


def refuse_repeats(names: Iterable[object]) -> None:
    """Raises `Broken` with the first name that is there more than once."""
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise Broken(f"names {repeated[0]} more than once")


class Rule(Protocol):
    """What a field's value must satisfy."""

    def read(self, value: object) -> object:
        """The value in its final form; raises `Broken`."""
        ...

    def schema(self) -> Schema:
        """The same rule for an API server, without description and default."""
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

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}

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

    def schema(self) -> Schema:
        # An API server cuts a bound's fraction off before it compares a whole number with it.
        least = {"rule": f"self >= {float(self.minimum)}", "message": f"is not within {self}"}
        return {
            "type": "number",
            "minimum": self.minimum,
            "maximum": self.maximum,
            "x-kubernetes-validations": [least],
        }

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
            raise Broken(_NOT_ASCENDING)
        return tuple(value)

    def schema(self) -> Schema:
        ascending = {
            "rule": "self.isSorted() && self.all(edge, self.exists_one(one, one == edge))",
            "messageExpression": f"'%s {_NOT_ASCENDING}'.format([self])",
        }
        return {
            "type": "array",
            "items": self.each.schema(),
            "maxItems": self.at_most,
            "x-kubernetes-list-type": "atomic",
            "x-kubernetes-validations": [ascending],
        }

    def __str__(self) -> str:
        return f"up to {self.at_most} ascending integers, {self.each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string of a given form, never empty."""

    pattern: str | None = None
    """What the whole string must match, in the common part of Python's and Go's syntax, by which
    ``\\w`` is an ASCII character; None: anything."""
    form: str = "a text that is not empty"
    at_most: int = 512

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise Broken("is not a string")
        if len(value) > self.at_most:
            raise Broken(f"is longer than {self.at_most} characters")
        if not value or not self._matches(value):
            raise Broken(f"is not {self.form}")
        return value

    def _matches(self, value: str) -> bool:
        return self.pattern is None or re.fullmatch(self.pattern, value, re.ASCII) is not None

    def schema(self) -> Schema:
        bounds: Schema = {"type": "string", "minLength": 1, "maxLength": self.at_most}
        return bounds if self.pattern is None else bounds | {"pattern": anchored(self.pattern)}

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

    def schema(self) -> Schema:
        return {"type": "string", "enum": [member.value for member in self.of]}

    def __str__(self) -> str:
        return ", ".join(member.value for member in self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Yes or no."""

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Broken("is not true or false")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}

    def __str__(self) -> str:
        return "true, false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """Kubernetes quantities by resource name, kept as they are written."""

    def read(self, value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            raise Broken("is not a mapping")
        if len(value) > _MOST_RESOURCES:
            raise Broken(f"has {len(value)} entries, more than the {_MOST_RESOURCES} allowed")
        for name, quantity in value.items():
            if not isinstance(name, str):
                raise Broken(f"has a name that is not a string: {name}")
            # `cpu: 1` is a number in YAML and as good as "1" to Kubernetes. A custom resource can
            # allow integers beside strings, but no fractions.
            good = isinstance(quantity, str | int) and not isinstance(quantity, bool)
            if not good or not self._is_quantity(str(quantity)):
                raise Broken(
                    f"has under {name} a value that is not a quantity such as 500m or 2Gi "
                    "(quote fractions)"
                )
        return tuple(sorted((name, str(quantity)) for name, quantity in value.items()))

    @staticmethod
    def _is_quantity(text: str) -> bool:
        return len(text) <= _LONGEST_QUANTITY and re.fullmatch(_QUANTITY, text) is not None

    def schema(self) -> Schema:
        quantity = {
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "maxLength": _LONGEST_QUANTITY,
            "pattern": anchored(_QUANTITY),
        }
        return {
            "type": "object",
            "additionalProperties": quantity,
            "maxProperties": _MOST_RESOURCES,
        }

    def __str__(self) -> str:
        return "quantities by resource, such as cpu: 500m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A list of names without repeats, usually of Kubernetes objects or no longer than theirs."""

    each: Text = Text(at_most=LONGEST_OBJECT_NAME)
    called: str = "name"
    at_most: int = 16

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise Broken("is not a list")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        for name in value:
            try:
                self.each.read(name)
            except Broken as broken:
                raise Broken(f"has an entry that is not a {self.called}") from broken
        refuse_repeats(value)
        return tuple(value)

    def schema(self) -> Schema:
        return {
            "type": "array",
            "items": self.each.schema(),
            "maxItems": self.at_most,
            "x-kubernetes-list-type": "set",
        }

    def __str__(self) -> str:
        return f"up to {self.at_most} {self.called}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers by name."""

    each: Real
    at_most: int

    def read(self, value: object) -> tuple[tuple[str, float], ...]:
        if not isinstance(value, dict):
            raise Broken("is not a mapping")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        found = {}
        for name, number in value.items():
            if not isinstance(name, str):
                raise Broken(f"has a name that is not a string: {name}")
            try:
                found[name] = self.each.read(number)
            except Broken as broken:
                raise Broken(f"has under {name} a value that {broken}") from broken
        return tuple(sorted(found.items()))

    def schema(self) -> Schema:
        return {
            "type": "object",
            "additionalProperties": self.each.schema(),
            "maxProperties": self.at_most,
        }

    def __str__(self) -> str:
        return f"up to {self.at_most} numbers by name, {self.each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMap:
    """A mapping of names to strings."""

    at_most: int = 64
    longest: int = 32_768

    def read(self, value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            raise Broken("is not a mapping")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        for name, text in value.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise Broken(f"has under {name} a value that is not a string (quote numbers)")
            if len(text) > self.longest:
                raise Broken(f"has under {name} more than {self.longest} characters")
        return tuple(sorted(value.items()))

    def schema(self) -> Schema:
        return {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": self.longest},
            "maxProperties": self.at_most,
        }

    def __str__(self) -> str:
        return f"up to {self.at_most} strings by name"
