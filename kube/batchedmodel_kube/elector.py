"""Which of several replicas leads, decided from a Lease. Pure: time is an argument, nothing waits.

The rules follow Kubernetes' own leader election (client-go's `leaderelection`). A replica that
waits takes the Lease when the holder has been silent for a while by the waiter's own clock, so that
no two clocks are compared. A leader stops some time before that, counted from the moment at which
it sent its last good write.

So there are never two leaders, except in one case, as in client-go: when somebody deletes the
Lease, a replica that has never read it takes it at once, as at a first start, and the holder
believes in it until its next try. A replica that has read it waits as for a silent holder.
"""

from dataclasses import dataclass, replace
from typing import Final

LEASE_SECONDS: Final = 10.0
"""After so long a silence of the holder another replica takes the Lease."""
RENEW_SECONDS: Final = 7.0
"""A holder that could not renew for so long leads no more. The rest of the time is for its writes
that are under way."""
RETRY_SECONDS: Final = 2.0
"""Between two tries, of a holder as of one who waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A Lease as it was read, or as it is to be written if it still is what was read."""

    holder: str
    """Empty: given back."""
    version: str
    """Every write makes another one. To be written: that of the Lease that was read, or empty when
    there was none."""
    transitions: int = 0
    acquired: str = ""
    """Empty, to be written: now."""


class Elector:
    """One replica's view of the Lease."""

    def __init__(self, identity: str) -> None:
        """`identity` is this run's alone: an earlier run of the same process had another."""
        self._identity = identity
        self._seen: Record | None = None
        self._seen_at = float("-inf")
        self._leads_until = float("-inf")
        self._unanswered: float | None = None
        """When the first claim was made of those that may have been written and got no answer."""

    def step(self, record: Record | None, now: float) -> Record | None:
        """What to write; None when somebody else leads.

        `record`: as the API server had it before `now`; None when there is no Lease. A replica
        that has never seen a Lease then takes it.
        """
        if record is not None and record != self._seen:
            self._seen, self._seen_at = record, now
            if record.holder == self._identity and self._unanswered is not None:
                # A claim was written although its answer came too late or not at all. Without this
                # an API server that is slow to us alone would have us hold the Lease and not lead.
                self.confirmed(self._unanswered)
        # The holder of a Lease that was deleted may not know it yet. It counts as silent.
        last = self._seen
        if last is not None and last.holder not in ("", self._identity):
            self._leads_until, self._unanswered = float("-inf"), None
            if now < self._seen_at + LEASE_SECONDS:
                return None
        ours = last is not None and last.holder == self._identity
        transitions = 0 if last is None else last.transitions
        self._unanswered = now if self._unanswered is None else self._unanswered
        return Record(
            holder=self._identity,
            version="" if record is None else record.version,
            transitions=transitions if ours or last is None else transitions + 1,
            acquired=last.acquired if last is not None and ours else "",
        )

    def confirmed(self, stepped: float) -> None:
        """The claim was written. `stepped`: the time of the step that made it.

        It is not the time of the answer: others count from when the API server had the claim.
        """
        self._leads_until = max(self._leads_until, stepped + RENEW_SECONDS)
        self._unanswered = None

    def resign(self, record: Record | None) -> Record | None:
        """What to write so that others need not wait; None when this replica holds no Lease."""
        self._leads_until, self._unanswered = float("-inf"), None
        if record is None or record.holder != self._identity:
            return None
        return replace(record, holder="")

    def remaining(self, now: float) -> float:
        """Seconds for which this replica leads whatever happens; 0 when it does not."""
        return max(0.0, self._leads_until - now)
