"""What the policy sees of the calls that wait: all of a short one, of a long list a part at a time.

Owned by the batcher. A list of thousands of rows would keep everybody behind it waiting; shown in
parts, whose later ones stand back, it is served in turns with what came after it.
"""

from itertools import count
from typing import Final

from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.base import BasePolicy
from batchedmodel_scheduling.policy import ItemId, Refusal
from batchedmodel_sidecar.ledger import Ledger
from batchedmodel_sidecar.live_call import LiveCall

_BATCHES_SHOWN: Final = 2  # of one call per worker: one that leaves, and one behind it


class Turns:
    """Numbers rows and shows them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ids = count(1)
        self._unseen = 0
        """Rows of accepted calls that the policy has not seen."""

    def offer(self, live: LiveCall, policy: BasePolicy, now: float) -> Refusal | None:
        """Ask for room for all rows of a call; if there is none nothing of it waits."""
        rows, shown = len(live.call.rows), _at_once(policy)
        refusal = self.no_room(rows, policy)
        if refusal is None and rows > shown:
            refusal = self._too_long(live, policy, now)
        while refusal is None and len(live.ids) < min(rows, shown):
            refusal = policy.offer(live.show(ItemId(next(self._ids)), now), now)
        if refusal is not None:
            for item_id in live.ids:
                policy.withdraw(item_id, now)
            return refusal
        self._unseen += rows - len(live.ids)
        return None

    def show_more(self, live: LiveCall, policy: BasePolicy, now: float) -> range:
        """Rows of a call have left: let the policy see as many of the unseen ones; says which."""
        unseen = len(live.call.rows) - len(live.ids)
        more = max(0, min(unseen, _at_once(policy) - (live.waiting - unseen)))
        for _ in range(more):
            policy.take_over(live.show(ItemId(next(self._ids)), now))
        self._unseen -= more
        return range(len(live.ids) - more, len(live.ids))

    def settled(self, live: LiveCall) -> None:
        """A call ended, whatever of it was seen."""
        self._unseen -= len(live.call.rows) - len(live.ids)

    def no_room(self, rows: int, policy: BasePolicy) -> Refusal | None:
        """Whether so many rows do not fit in: what the policy cannot know, as it sees a part."""
        waiting = self._ledger.rows_waiting
        if not self._unseen or waiting + rows <= policy.settings.max_queue_size:
            return None
        return Refusal(reason=Rejection.QUEUE_FULL, retry_after=policy.retry_after(waiting))

    def _too_long(self, live: LiveCall, policy: BasePolicy, now: float) -> Refusal | None:
        """Whether a list that is no use when late would be late even in full batches."""
        strict = live.due == live.deadline and policy.pipeline.times.profiled
        seconds = (self._ledger.work_live + live.work) / policy.pipeline.workers
        if not strict or now + seconds <= live.deadline:
            return None
        delay = policy.retry_after(self._ledger.rows_waiting)
        return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=delay)


def _at_once(policy: BasePolicy) -> int:
    settings = policy.settings
    return _BATCHES_SHOWN * settings.max_concurrent_batches * settings.max_batch_size
