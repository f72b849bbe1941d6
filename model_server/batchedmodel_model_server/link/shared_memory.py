"""Memory that a sidecar shares over its connection: rows to read, and room for answers."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from batchedmodel_contract.inference.batch import AnswerRoom
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.region import MIN_ITEM_BYTES, mapped

_ALIGNMENT: Final = 8
DESCRIPTORS: Final = 2  # of memory for rows, and for answers


class Placing:
    """Puts large items one behind the other where the sidecar sees them."""

    def __init__(self, room: memoryview) -> None:
        self._room = np.frombuffer(room, np.uint8)
        self._filled = 0

    def __call__(self, item: Buffer) -> int | None:
        """Where in the room the item lies now; None where it must be sent."""
        start, end = self._filled, self._filled + len(item)
        if len(item) < MIN_ITEM_BYTES or end > len(self._room):
            return None
        # Other threads go on meanwhile, which they do not while memoryviews are copied.
        np.copyto(self._room[start:end], np.frombuffer(item, np.uint8))
        # The sidecar views it as numbers.
        self._filled = -(-end // _ALIGNMENT) * _ALIGNMENT
        return start


class SharedMemory(NamedTuple):
    """What one sidecar shares, if anything; unmapped once nothing refers to it any more."""

    rows: memoryview | None = None
    answers: memoryview | None = None

    def placing(self, room: AnswerRoom | None) -> Placing | None:
        """What puts items of a reply into the room that its batch has; None without any.

        Raises `InvalidInput` for room that the memory does not have.
        """
        if room is None or self.answers is None:
            return None
        if room.start + room.size > len(self.answers):
            rule = f"leads out of the shared memory's {len(self.answers)} bytes"
            raise InvalidInput("room", rule, room.start)
        return Placing(self.answers[room.start : room.start + room.size])


def shared_memory(descriptors: Sequence[int]) -> SharedMemory:
    """The memory behind descriptors, for rows and for answers; raises `InvalidInput`, `OSError`."""
    if len(descriptors) != DESCRIPTORS:
        # As where this process may open no more files.
        raise InvalidInput("descriptors", f"are not {DESCRIPTORS}", len(descriptors))
    rows, answers = descriptors
    return SharedMemory(
        rows=memoryview(mapped(rows, writable=False)),
        answers=memoryview(mapped(answers, writable=True)),
    )
