"""Makes the policy that the settings name."""

from typing import Final

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.profile import Profile
from batchedmodel_contract.spec import PolicyName
from batchedmodel_scheduling.batch_times import BatchTimes
from batchedmodel_scheduling.greedy import Greedy
from batchedmodel_scheduling.pipeline import Pipeline
from batchedmodel_scheduling.queueing import QueueingPolicy
from batchedmodel_scheduling.waiting import WaitingSet
from batchedmodel_scheduling.window import Window

_CLASSES: Final[dict[PolicyName, type[QueueingPolicy]]] = {
    PolicyName.GREEDY: Greedy,
    PolicyName.WINDOW: Window,
}


def new_policy(settings: BatchSettings, profile: Profile | None) -> QueueingPolicy:
    """A policy with nothing waiting, which predicts by the profile if there is one."""
    policy_class = _CLASSES[settings.policy]
    return policy_class(settings, WaitingSet(), Pipeline(BatchTimes(profile)))


def reconfigured(policy: QueueingPolicy, settings: BatchSettings, now: float) -> QueueingPolicy:
    """The policy for other settings; what waits and what was learnt go over to it."""
    if isinstance(policy, _CLASSES[settings.policy]):
        policy.configure(settings, now)
        return policy
    return _CLASSES[settings.policy](settings, policy.waiting, policy.pipeline)


def relearning(policy: QueueingPolicy, profile: Profile | None) -> QueueingPolicy:
    """The policy for a server that started anew: what waits stays, what was learnt does not."""
    pipeline = Pipeline(BatchTimes(profile), ids=policy.pipeline.ids)
    return _CLASSES[policy.settings.policy](policy.settings, policy.waiting, pipeline)
