"""Devices whose times are sums of rows and tokens, and the profiles that they would have."""

from collections.abc import Sequence
from dataclasses import dataclass

from batchedmodel_cli.simulator.engine import Curve
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """fixed + per_row x rows + per_token x cost, in seconds."""

    fixed: float
    per_row: float = 0.0
    per_token: float = 0.0
    rule: CostRule = CostRule.PADDED

    def seconds(self, lengths: Sequence[int]) -> float:
        """See `Curve`."""
        rows, tokens = len(lengths), 0
        if self.per_token:
            tokens = self.rule.paid(rows=rows, longest=max(lengths), total=sum(lengths))
        return self.fixed + self.per_row * rows + self.per_token * tokens


def profile_of(
    curve: Curve,
    *,
    max_rows: int,
    lengths: Sequence[int],
    cost_rule: CostRule,
    device: str = "simulated",
) -> Profile:
    """What a server with this curve would measure without noise: 1, 2, 4, ... `max_rows` rows."""
    counts = {min(1 << power, max_rows) for power in range(max_rows.bit_length() + 1)}
    points = tuple(
        ProfilePoint(rows=rows, length=length, seconds=curve.seconds([length] * rows))
        for rows in sorted(counts)
        for length in sorted(set(lengths))
    )
    return Profile(cost_rule=cost_rule, device=device, points=points)
