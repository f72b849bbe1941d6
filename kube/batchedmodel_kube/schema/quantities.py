"""Rules for single values of Kubernetes': quantities, amounts, numbers of pods."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from batchedmodel_contract.schema.rules import Broken, Text, Whole

LONGEST_QUANTITY: Final = 32
QUANTITY: Final = r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE])?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A quantity of Kubernetes', as a text."""

    def read(self, value: object) -> str:
        # `cpu: 1` is a number in YAML and as good as "1" to Kubernetes. A custom resource can allow
        # integers beside strings, but no fractions.
        good = isinstance(value, str | int) and not isinstance(value, bool)
        text = str(value) if good else ""
        if len(text) > LONGEST_QUANTITY or not re.fullmatch(QUANTITY, text):
            raise Broken("is not a quantity such as 500m or 2Gi (quote fractions)")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A whole number or a string, such as a quantity, or a port by its number or its name."""

    longest: int = 64

    def read(self, value: object) -> int | str:
        if isinstance(value, str):
            return Text(at_least=0, at_most=self.longest).read(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Broken("is neither an integer nor a string (quote fractions)")
        return Whole().read(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOrPercent:
    """A number of pods, or a share of them such as 25%."""

    minimum: int = 0
    maximum: int = 1000

    def read(self, value: object) -> int | str:
        if isinstance(value, str) and re.fullmatch(self.percent, value, re.ASCII):
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            raise Broken(f"is neither an integer nor a percentage from {self.minimum}% to 100%")
        return Whole(minimum=self.minimum, maximum=self.maximum).read(value)

    @property
    def percent(self) -> str:
        """The pattern of a share."""
        return "([1-9][0-9]?|100)%" if self.minimum else "([0-9]|[1-9][0-9]|100)%"

    def __str__(self) -> str:
        return f"{self.minimum} to {self.maximum}, {self.minimum}% to 100%"


_FACTORS: Final = {
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{unit: Decimal(1000) ** -power for power, unit in enumerate("mun", start=1)},
}
"""By the end of the text."""


def amount_of(quantity: str) -> Decimal:
    """The number of a text that keeps the rule `Quantity`; without a unit it is one of Python's."""
    for unit, factor in _FACTORS.items():
        if quantity.endswith(unit):
            return Decimal(quantity.removesuffix(unit)) * factor
    return Decimal(quantity)


def bytes_of(memory: str | None) -> int | None:
    """An amount of memory as a number of bytes; None for none."""
    return None if memory is None else int(amount_of(memory))
