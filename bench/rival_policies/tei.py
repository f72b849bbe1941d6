"""text-embeddings-inference: first in first out under a budget of tokens.

A batch takes requests from the head of the queue until the next one would put it above the budget
(rows x longest for a model that pads, the sum of lengths otherwise) or until it has its maximum of
rows, and leaves as soon as the server can take it. It knows neither deadlines nor buckets, and it
sorts nothing: one long request early in the queue pads all that share its batch.

Source: `queue_blocking_task` in core/src/queue.rs of huggingface/text-embeddings-inference.
Generous: the batch is formed only when the device is free; the bound of the queue is the
settings', not 512 concurrent requests.
"""

from itertools import islice
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import Rejection, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision
from batchedmodel_scheduling.queue.items import NEVER, Item, Refusal
from rival_policies.rival import Rival

DEFAULT_BUDGET: Final = 16384  # tokens; the server's `--max-batch-tokens`


class Tei(Rival):
    """The settings give the maximum of rows."""

    def __init__(
        self,
        settings: BatchSettings,
        *,
        budget: int = DEFAULT_BUDGET,
        padded: bool = True,
        drop_expired: bool = False,
    ) -> None:
        """Budget in tokens of a batch; `drop_expired` where callers leave at their deadline."""
        super().__init__(settings)
        self._drop_expired = drop_expired
        self._budget = budget
        self._padded = padded

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Refuse what is above the budget alone, or what finds the queue full."""
        if item.length > self._budget:
            return Refusal(reason=Rejection.TOO_LARGE, retry_after=NEVER)
        return super().offer(item, now)

    def _decide(self, now: float) -> Decision:
        waiting = list(self.waiting.values()) if self._drop_expired else []
        shed = self._give_up_expired(waiting, now)
        items: list[Item] = []
        longest = total = 0
        for item in islice(self.waiting.values(), self.settings.max_batch_size):
            longest, total = max(longest, item.length), total + item.length
            tokens = longest * (len(items) + 1) if self._padded else total
            if tokens > self._budget or (items and item.key != items[0].key):
                break
            items.append(item)
        if not items:
            return self._hold(now, shed=shed)
        return self._release(items, ReleaseReason.IDLE, now, shed)
