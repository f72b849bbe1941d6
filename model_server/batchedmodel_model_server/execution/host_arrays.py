"""Brings what a handler gave to the host, in the datatype that it declared.

Pure but for the copying; called on the compute thread, for that is where a pass must be over before
the next one may write to the same memory.
"""

from typing import Any, Final

import numpy as np

from batchedmodel_model_server.api.batch import Array
from batchedmodel_model_server.errors import ForwardFailed

_HALVES: Final = 4  # bytes: below it torch has datatypes that numpy does not know
_FITTING: Final = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
"""By the kind that is declared, the kinds that may be given: a float is no integer, even if whole,
and what is complex or a text is no number."""


def to_host(field: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """The values in memory of their own; raises `ForwardFailed` for what the datatype cannot hold.

    Of their own, because a handler may write its next answers where these are while they are
    still being sent. What came from a device or was cast is a copy already.
    """
    is_copy = False
    if hasattr(value, "detach"):
        tensor = value.detach()
        is_copy = tensor.device.type != "cpu"
        value = tensor.cpu()
        if value.is_floating_point() and value.element_size() < _HALVES:
            value, is_copy = value.float(), True
        value = value.numpy()
    array: Array = np.asarray(value)
    _check(field, array, dtype)
    return array.astype(dtype, copy=not is_copy)


def _check(field: str, array: Array, dtype: np.dtype[Any]) -> None:
    if array.size == 0 or array.dtype == dtype:
        return
    given, declared = array.dtype.kind, dtype.kind
    if given not in _FITTING[declared]:
        raise ForwardFailed(
            f"output {field} is {array.flat[0]!s} ({array.dtype}) at its first place, which is "
            f"not of the declared {dtype}; cast it in forward"
        )
    if declared == "f" or np.can_cast(array.dtype, dtype):
        return
    least, largest = (0, 1) if declared == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for value in (int(array.min()), int(array.max())):
        if not least <= value <= largest:
            raise ForwardFailed(
                f"output {field} holds {value}, which is not within {least} to {largest}, as the "
                f"declared {dtype} is"
            )
