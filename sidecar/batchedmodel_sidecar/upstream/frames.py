"""What a JSON answer holds beside its rows, for the protocols whose answers are plain objects.

A single value there (the model's name, its version) is true for each caller. A list or an object
may hold something for each row, in an order that only its author knows: it passes to a caller who
was alone, and an answer for several callers that has one cannot be divided.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_sidecar.errors import Unserved

Frame = tuple[tuple[str, str], ...]
"""Names and the text of their values."""

_COMPOUND: Final = ("[", "{")


def beside(given: Mapping[str, str], *, alone: bool) -> Frame:
    """The frame of an answer; raises `InvalidInput` when it is for several and has no one owner."""
    if not alone:
        for name, text in given.items():
            if text.startswith(_COMPOUND):
                rule = "is not a single value, and the answer is for several callers"
                raise InvalidInput(name, rule)
    return tuple(given.items())


def in_common(frames: Sequence[Frame]) -> Frame:
    """The frame of a call whose rows were answered together or in several requests.

    Of single values that differ, such as times, the first stands; raises `Unserved` for others.
    """
    first = frames[0]
    for name, text in first:
        if text.startswith(_COMPOUND) and any((name, text) not in frame for frame in frames):
            message = f"the model answered parts of this request with different {name}"
            raise Unserved(message, status=502)
    return first
