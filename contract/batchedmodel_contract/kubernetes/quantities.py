"""The number that a quantity of Kubernetes' stands for: 1,610,612,736 is 1.5Gi, and 0.5 is 500m."""

from decimal import Decimal
from typing import Final

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
