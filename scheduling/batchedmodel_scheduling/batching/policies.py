"""Makes the policy that the settings name."""

from typing import Final

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_scheduling.batching.deadline import Deadline
from batchedmodel_scheduling.batching.fifo import Greedy, QueueingPolicy, Window
from batchedmodel_scheduling.batching.policy import BasePolicy, Pipeline
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.item_queue import ItemQueue
from batchedmodel_scheduling.queue.shared_room import SharedRoom

_CLASSES: Final[dict[PolicyName, type[Deadline | QueueingPolicy]]] = {
    PolicyName.DEADLINE: Deadline,
    PolicyName.GREEDY: Greedy,
    PolicyName.WINDOW: Window,
}


def new_policy(
    settings: BatchSettings,
    profile: Profile | None,
    *,
    adapter_slots: int = 0,
    room: SharedRoom | None = None,
) -> BasePolicy:
    """A policy with nothing waiting, which predicts by the profile if there is one.

    `adapter_slots`: adapters that the server has on its device at a time; 0 where it has none.
    `room`: what tenants share.
    """
    pipeline = Pipeline(BatchTimes(profile), adapter_slots=adapter_slots)
    return _CLASSES[settings.policy](settings, pipeline, ItemQueue(room))


def reconfigured(policy: BasePolicy, settings: BatchSettings, now: float) -> BasePolicy:
    """The policy for other settings; what waits and what was learnt go over to it."""
    if isinstance(policy, _CLASSES[settings.policy]):
        policy.configure(settings, now)
        return policy
    successor = _CLASSES[settings.policy](settings, policy.pipeline, policy.queue)
    successor.observe(policy.memory, now)
    return successor


def relearning(policy: BasePolicy, profile: Profile | None) -> BasePolicy:
    """The policy for a server that started anew: what waits stays, what was learnt does not."""
    slots = policy.pipeline.adapters.slots
    pipeline = Pipeline(BatchTimes(profile), ids=policy.pipeline.ids, adapter_slots=slots)
    return _CLASSES[policy.settings.policy](policy.settings, pipeline, policy.queue)
