"""What ledger, histograms and log are told of a batch.

It is compiled in the image; `metrics` is not.
"""

import logging
from typing import Final

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.processes.logs import about
from batchedmodel_scheduling.core.policy import Batch
from batchedmodel_sidecar.batching.pending_request import Members
from batchedmodel_sidecar.telemetry.durations import Durations
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)


class BatchCounts:
    """What ledger, histograms and log are told of each batch of one batcher."""

    def __init__(self, ledger: Ledger, durations: Durations) -> None:
        self._ledger = ledger
        self._durations = durations

    def leaves(self, batch: Batch, members: Members, now: float) -> None:
        """A batch leaves: its rows wait no more."""
        for item, (pending, _) in zip(batch.items, members, strict=True):
            self._ledger.leave(len(pending.call.rows), pending.waiting)
            pending.leaves(batch.id, len(batch.items), now)
            self._durations.queue.observe(now - item.arrived)
        self._ledger.batch_leaves(batch.reason, len(batch.items), now)
        self._durations.batch_size.observe(len(batch.items))
        if logger.isEnabledFor(logging.DEBUG):
            # By these ids the logs of its callers are found.
            traces = sorted({pending.terms.trace or "-" for pending, _ in members})
            logger.debug(
                "batch %d: %d rows, %s, traces %s",
                *(batch.id, len(members), batch.reason, traces),
                extra=about(reason=batch.reason, trace=" ".join(traces)),
            )

    def ends(self, batch: Batch, reply: BatchReply | None, now: float) -> None:
        """A batch is off the server, with a reply or without one."""
        self._ledger.batch_ends(len(batch.items), now)
        if reply is not None:
            self._ledger.computed(reply.tokens, reply.padded_tokens, reply.long_rows)
            self._durations.model.observe(reply.compute_seconds)
