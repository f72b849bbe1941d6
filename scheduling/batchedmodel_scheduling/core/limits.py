"""What one batch may hold: rows, and tokens where a setting or the server's memory bounds them.

Used by every policy when it cuts a batch. An item that is over a bound all by itself goes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.core.policy import MemoryCap


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


def limits(settings: BatchSettings, memory: MemoryCap, rule: CostRule) -> Limits:
    """The user's bounds and the server's."""
    # Tokens are not what every device pays for.
    tokens = None if rule is CostRule.ROWS else settings.max_batch_tokens
    costs = [bound for bound in (tokens, memory.cost) if bound is not None]
    rows = [bound for bound in (settings.max_batch_size, memory.rows) if bound is not None]
    return Limits(rows=min(rows), cost=min(costs, default=None), rule=rule)
