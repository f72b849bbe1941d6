"""The rules over several fields of `spec.rollout`; part of `checks`."""

from typing import Final

from batchedmodel_contract.manifest.cross_field_rule import Check
from batchedmodel_contract.manifest.workload import RolloutStrategy

_NONE: Final = (0, "0%")

ROLLOUT_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="no pod could be replaced",
        field="rollout.maxUnavailable",
        broken=lambda spec: (
            spec.rollout.max_surge in _NONE and spec.rollout.max_unavailable in _NONE
        ),
        holds="!has(self.rollout.maxSurge) || !has(self.rollout.maxUnavailable)"
        " || !((self.rollout.maxSurge == 0 || self.rollout.maxSurge == '0%')"
        " && (self.rollout.maxUnavailable == 0 || self.rollout.maxUnavailable == '0%'))",
        rule="is 0 as maxSurge is: no pod could be replaced",
    ),
    Check(
        name="a surge of no pods",
        field="rollout.maxSurge",
        broken=lambda spec: (
            spec.rollout.strategy is RolloutStrategy.SURGE and spec.rollout.max_surge in _NONE
        ),
        holds="self.rollout.strategy != 'Surge' || !has(self.rollout.maxSurge)"
        " || !(self.rollout.maxSurge == 0 || self.rollout.maxSurge == '0%')",
        rule="is 0, but strategy Surge puts new pods beside the old ones",
    ),
    Check(
        name="a surge although old pods go first",
        field="rollout.maxSurge",
        broken=lambda spec: (
            spec.rollout.strategy is RolloutStrategy.IN_PLACE
            and spec.rollout.max_surge not in (None, *_NONE)
        ),
        holds="self.rollout.strategy != 'InPlace' || !has(self.rollout.maxSurge)"
        " || self.rollout.maxSurge == 0 || self.rollout.maxSurge == '0%'",
        rule="is not 0, but strategy InPlace takes old pods away first",
    ),
    Check(
        name="no pod may go first",
        field="rollout.maxUnavailable",
        broken=lambda spec: (
            spec.rollout.strategy is RolloutStrategy.IN_PLACE
            and spec.rollout.max_unavailable in _NONE
        ),
        holds="self.rollout.strategy != 'InPlace' || !has(self.rollout.maxUnavailable)"
        " || !(self.rollout.maxUnavailable == 0 || self.rollout.maxUnavailable == '0%')",
        rule="is 0, but strategy InPlace takes old pods away first",
    ),
)
"""In the order in which their messages are shown."""
