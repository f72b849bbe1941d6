"""Rules for fields that reach Kubernetes objects nearly as they are written.

They follow the protocol of `rules`, beside whose kinds of values they stand.
"""

import re
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.rules import Broken, Rule, Schema, Whole, anchored, refuse_repeats

_LABEL: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEntries:
    """A list that Kubernetes itself judges, but for names and a few parts, which we judge too."""

    form: str
    at_most: int = 32
    unique: bool = True
    """Whether a name may be there only once."""
    parts: tuple[tuple[str, Rule], ...] = ()
    """What else of an entry we judge, if it is there."""

    def read(self, value: object) -> list[object]:
        if not isinstance(value, list):
            raise Broken(f"is not {self.form}")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in value]
        if not all(isinstance(name, str) and 0 < len(name) <= _LABEL for name in names):
            raise Broken(f"has an entry without a name of 1 to {_LABEL} characters")
        if self.unique:
            refuse_repeats(names)
        for entry in value:
            self._judge_parts(entry)
        return value

    def _judge_parts(self, entry: dict[str, object]) -> None:
        for part, rule in self.parts:
            try:
                if entry.get(part) is not None:
                    rule.read(entry[part])
            except Broken as broken:
                raise Broken(f"has a {part} in {entry['name']} that {broken}") from broken

    def schema(self) -> Schema:
        name = {"description": "Its name.", "type": "string", "minLength": 1, "maxLength": _LABEL}
        parts = {
            part: {"description": f"It is {rule}.", **rule.schema()} for part, rule in self.parts
        }
        keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        return {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": name, **parts},
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "maxItems": self.at_most,
            **(keys if self.unique else {"x-kubernetes-list-type": "atomic"}),
        }

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A list of strings, any of which may be empty, in an order that matters."""

    at_most: int = 256
    longest: int = 8192

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise Broken("is not a list")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        for index, text in enumerate(value):
            if not isinstance(text, str):
                raise Broken(f"has at [{index}] a value that is not a string (quote numbers)")
            if len(text) > self.longest:
                raise Broken(f"has at [{index}] more than {self.longest} characters")
        return tuple(value)

    def schema(self) -> Schema:
        return {
            "type": "array",
            "items": {"type": "string", "maxLength": self.longest},
            "maxItems": self.at_most,
            "x-kubernetes-list-type": "atomic",
        }

    def __str__(self) -> str:
        return f"up to {self.at_most} strings"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOrPercent:
    """A number of pods, or a share of them such as 25%."""

    minimum: int = 0
    maximum: int = 1000

    def read(self, value: object) -> int | str:
        if isinstance(value, str) and re.fullmatch(self._percent(), value, re.ASCII):
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            raise Broken(f"is neither an integer nor a percentage from {self.minimum}% to 100%")
        return Whole(minimum=self.minimum, maximum=self.maximum).read(value)

    def schema(self) -> Schema:
        return {
            "x-kubernetes-int-or-string": True,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "maxLength": len("100%"),
            "pattern": anchored(self._percent()),
        }

    def _percent(self) -> str:
        return "([1-9][0-9]?|100)%" if self.minimum else "([0-9]|[1-9][0-9]|100)%"

    def __str__(self) -> str:
        return f"{self.minimum} to {self.maximum}, {self.minimum}% to 100%"
