"""What becomes of a row whose batch came to nothing: another try, or an end.

Pure; called by the batcher for each row that is still wanted. A row over which the server died is
tried once more, by itself, so that whatever kills servers takes nobody with it the second time.
"""

from typing import Final, NamedTuple

from batchedmodel_scheduling.policy import Item, ItemId
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.live_call import LiveCall

_MOST_RESTS: Final = 3  # per row of a call


class _Alone(NamedTuple):
    """A compatibility key that nobody shares."""

    item: ItemId


def again(live: LiveCall, item: Item, error: Unserved, *, idempotent: bool) -> Item | Unserved:
    """The row as it is tried again, or what its call is told.

    `idempotent` says that a row may be sent again when nobody knows what became of it, as far as
    the settings go; the model may say otherwise.
    """
    if isinstance(error, Busy):
        # Nothing was done for it, so it may be sent again in any case.
        live.rests += 1
        again = item._replace(fan_out=None)  # its group has heard of it
        return again if live.rests <= _MOST_RESTS * len(live.call.rows) else error
    if not isinstance(error, Lost) or not (idempotent and live.call.description.idempotent):
        return error
    if isinstance(item.key, _Alone):
        message = "the model server died twice with this in work; it is not sent again"
        return Unserved(message, status=502)
    return item._replace(key=_Alone(item.id), fan_out=None)
