"""Dynamic thresholds: what a tenant may have of rows of a queue, bytes of bodies or places.

The more is free, the more each tenant may have (Choudhury and Hahne, 1998). A tenant that takes all
it may leaves some for others, and more the more of them there are. A tenant alone gets all but the
spare room, an eighth or less. What a tenant has is never taken from it. Pure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection

_TIMES: Final = 7
"""One may have so many times what stays free, so one alone leaves an eighth."""


@dataclass(slots=True)
class _Usage:
    amount: int
    weight: float


class SharedRoom:
    """How much of the room each tenant has. Together they never have more than its size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.spare = size // (_TIMES + 1)
        """What a tenant alone does not get: an eighth at most."""
        self.in_use = 0
        self._usages: Final[dict[str, _Usage]] = {}
        self._weights: Final[Counter[float]] = Counter()
        """How many tenants with some of it have each weight."""

    def __len__(self) -> int:
        """How many tenants have some of it."""
        return len(self._usages)

    @property
    def tenants(self) -> Collection[str]:
        """Those that have some of it."""
        return self._usages.keys()

    def of(self, tenant: str) -> int:
        """How much a tenant has."""
        usage = self._usages.get(tenant)
        return usage.amount if usage is not None else 0

    def has_others(self, tenant: str) -> bool:
        """Whether another tenant has some."""
        return len(self._usages) > (tenant in self._usages)

    def most(self, share: Share) -> float:
        """How much a tenant may have while no other has any, if it takes all at once."""
        return self.size if share.most >= 1 else max(1.0, share.most * self.size)

    def part(self, share: Share) -> float:
        """What it would have if all tenants with some of it shared all by their weights."""
        usage = self._usages.get(share.tenant)
        all_of_them = sum(weight * times for weight, times in self._weights.items())
        others = all_of_them - (0.0 if usage is None else usage.weight)
        return self.size * share.weight / (share.weight + others)

    def refusal(self, share: Share, amount: int, *, already: int = 0) -> Rejection | None:
        """Why a tenant may not take so much more; None if it may.

        The first that a tenant has may fill what is left. `already` is the part of this first that
        was taken before.
        """
        own = self.of(share.tenant)
        would = own + amount
        if share.most < 1 and would > self.most(share):
            return Rejection.OVER_SHARE
        free = self.size - self.in_use - amount
        if free >= 0 and (own == already or would <= self._threshold(share, free)):
            return None
        over = self.has_others(share.tenant) and would > self.part(share)
        return Rejection.OVER_SHARE if over else Rejection.QUEUE_FULL

    def most_now(self, share: Share) -> int:
        """How much more a tenant may have at present; `refusal` says so of exactly this."""
        amounts = range(1, self.size - self.in_use + 1)
        return bisect_left(
            amounts, True, key=lambda amount: self.refusal(share, amount) is not None
        )

    def take(self, share: Share, amount: int) -> None:
        """A tenant has so much more."""
        if not amount:
            return
        usage = self._usages.get(share.tenant)
        if usage is None:
            self._usages[share.tenant] = _Usage(amount, share.weight)
            self._weights[share.weight] += 1
        else:
            usage.amount += amount
            if usage.weight != share.weight:
                self._forget(usage.weight)
                usage.weight = share.weight
                self._weights[share.weight] += 1
        self.in_use += amount

    def give_back(self, tenant: str, amount: int) -> None:
        """A tenant has so much less."""
        if not amount:
            return
        usage = self._usages[tenant]
        usage.amount -= amount
        self.in_use -= amount
        if not usage.amount:
            del self._usages[tenant]
            self._forget(usage.weight)

    def _forget(self, weight: float) -> None:
        self._weights[weight] -= 1
        if not self._weights[weight]:
            del self._weights[weight]

    def _threshold(self, share: Share, free: int) -> float:
        return self._slope(share) * free + self.size - (_TIMES + 1) * self.spare

    def _slope(self, share: Share) -> float:
        """How much more a tenant may have for each that is free."""
        alike = not self._weights or (len(self._weights) == 1 and share.weight in self._weights)
        return _TIMES * (1.0 if alike else share.weight / max(share.weight, *self._weights))
