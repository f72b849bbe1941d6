"""What becomes of a row whose batch came to nothing: another try, or an end.

Pure; called by the batcher for each row that is still wanted. A row over which the server died is
tried once more, by itself, so that whatever kills servers takes nobody with it the second time. It
is blamed only for a death with nothing beside it.
"""

from typing import Final, NamedTuple

from batchedmodel_scheduling.policy import Item, ItemId
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.live_call import LiveCall

_MOST_RESTS: Final = 3  # per row of a call


class Alone(NamedTuple):
    """The compatibility key of a suspect, which nobody shares."""

    item: ItemId


def again(
    live: LiveCall, item: Item, error: Unserved, *, idempotent: bool, alone: bool
) -> Item | Unserved:
    """The row as it is tried again, or what its call is told.

    `idempotent` says that a row may be sent again when nobody knows what became of it, as far as
    the settings go; the model may say otherwise. `alone` says that its batch had the server for
    itself.
    """
    if isinstance(error, Busy):
        # Nothing was done for it, so it may be sent again in any case.
        live.rests += 1
        again = item._replace(fan_out=None)  # its group has heard of it
        return again if live.rests <= _MOST_RESTS * len(live.call.rows) else error
    if not isinstance(error, Lost) or not (idempotent and live.call.description.idempotent):
        return error
    if isinstance(item.key, Alone):
        if not alone:
            return error
        message = "the model server died twice with this in work; it is not sent again"
        return Unserved(message, status=502)
    return item._replace(key=Alone(item.id), fan_out=None)
