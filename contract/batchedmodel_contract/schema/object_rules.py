"""Rules for fields that reach Kubernetes objects nearly as they are written.

They follow the protocol of `rules`, beside whose kinds of values they stand.
"""

import re
from dataclasses import dataclass

from batchedmodel_contract.schema.rules import Broken, Schema, Whole, anchored


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
