"""What becomes of a row whose batch came to nothing: another try, or an end.

Pure; called by the batcher for each row that is still wanted. A row over which the server died is
tried once more, by itself, so that whatever kills servers takes nobody with it the second time. It
is blamed only for a death with nothing beside it.
"""

from typing import Final, NamedTuple

from batchedmodel_scheduling.core.policy import Item
from batchedmodel_sidecar.batching.isolation import Alone, apart
from batchedmodel_sidecar.batching.pending_request import PendingRequest
from batchedmodel_sidecar.errors import Busy, Fatal, Lost, Unserved

_MOST_RESTS: Final = 3  # per row of a call


class Company(NamedTuple):
    """What a batch had beside each of its rows."""

    idempotent: bool
    """Whether a row may be sent again when nobody knows what became of it, as far as the settings
    go; the model may say otherwise."""
    alone: bool
    """Whether it had the server for itself."""
    shared: bool
    """Whether it had rows of several callers."""


def told_apart(error: Unserved, *, idempotent: bool) -> bool:
    """Whether each caller of a batch that is told so has its rows tried again without the others'.

    What a server answers to several may be meant for one of them alone. If it did nothing, or rows
    may be sent twice, that is found out.
    """
    return error.answered and (idempotent or isinstance(error, Busy))


def again(pending: PendingRequest, item: Item, error: Unserved, batch: Company) -> Item | Unserved:
    """The row of a batch as it is tried again, or what its call is told."""
    if batch.shared and told_apart(error, idempotent=batch.idempotent):
        return apart(item, pending.tenant)._replace(request_group=None)
    if isinstance(error, Busy):
        # Nothing was done for it, so it may be sent again in any case.
        pending.rests += 1
        again = item._replace(request_group=None)  # its group has heard of it
        return again if pending.rests <= _MOST_RESTS * len(pending.call.rows) else error
    if not isinstance(error, Lost) or not (
        batch.idempotent and pending.call.description.idempotent
    ):
        return error
    if isinstance(item.key, Alone):
        if not batch.alone:
            return error
        return Fatal()
    return item._replace(key=Alone(item.id), request_group=None)
