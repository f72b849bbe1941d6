"""How many items go together in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from batchedmodel_contract.inference.description import CostRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a batch; `cost` is in what the device pays for, None for no bound."""

    rows: int
    cost: int | None
    rule: CostRule

    def rows_of(self, longest: int) -> int:
        """How many items go together if all are as long as this; at least 1."""
        if self.cost is None:
            return self.rows
        each = 1 if self.rule is CostRule.ROWS else max(1, longest)
        return max(1, min(self.rows, self.cost // each))

    def fitting(self, lengths: Sequence[int]) -> int:
        """How many of these items, from the first on, go together; at least 1 if there is one."""
        if self.cost is None:
            return min(self.rows, len(lengths))
        count = longest = total = 0
        for length in lengths:
            longest, total = max(longest, length), total + length
            cost = self.rule.paid(rows=count + 1, longest=longest, total=total)
            if count == self.rows or (count and cost > self.cost):
                break
            count += 1
        return count

    def full(self, lengths: Sequence[int]) -> bool:
        """Whether not even one more as short as the shortest of these would go with them."""
        if self.cost is None or len(lengths) >= self.rows:
            return len(lengths) >= self.rows
        return self.fitting([*lengths, min(lengths)]) == len(lengths)
