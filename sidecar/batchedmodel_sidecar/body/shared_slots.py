"""Room for large bodies in memory that the model server sees as well.

A row of such a body never travels: the batch says where it lies. A slot is free again when nothing
refers to it any more, be it a row that waits, a batch on its way or a body that is read. Where
there is no such memory, or no room in it, bodies lie in the process's own.
"""

import contextlib
import mmap
import os
import weakref
from bisect import insort
from collections import deque
from itertools import pairwise
from typing import Final
from uuid import uuid4

import numpy as np

from batchedmodel_contract.inference.batch_wire import (
    SharedRows,
)
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.processes.shared_region import LARGEST, LEAST, create, mapped
from batchedmodel_scheduling.core.shared_room import SharedRoom

_KEPT: Final = 64 << 20
"""Bytes at the beginning that are kept when they are free: three batches of 32 images. To fetch
fresh pages for each row takes as long as to copy it."""


class SharedSlots:
    """The region that is shared at present, if any. Used by one loop."""

    def __init__(self, size: int) -> None:
        """`size` of a region; only what was written takes memory."""
        self.size: Final = min(size, LARGEST)
        self._region: Region | None = None

    @property
    def rows(self) -> SharedRows | None:
        """How a batch refers to what lies in the region; None where nothing lay there lately."""
        region = self._region
        if region is None or not region.used:
            return None
        return SharedRows(region.name, region.place)

    def use(self, region: "Region") -> None:
        """Let bodies lie in a region, which the server has taken."""
        self._region = region

    def retire(self) -> None:
        """Use nothing of the present region again, for somebody may still read it."""
        if self._region is not None:
            self._region.retire()
        self._region = None

    def room(self, size: int, share: Share) -> memoryview | None:
        """Memory for a body of this tenant; None where there is none for it."""
        return None if self._region is None else self._region.slot(size, share)


class Region:
    """One region: what of it is free, and where the rest lies."""

    def __init__(self, descriptor: int, name: str | None = None) -> None:
        """Of that descriptor, which is closed when nothing refers to it; raises `OSError`.

        `name`: by which the server knows it; by default one that no other has.
        """
        self.name: Final = uuid4().hex if name is None else name
        self.descriptor: Final = descriptor
        self._memory = mapped(descriptor, writable=True)
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._size = len(self._memory)
        self._kept = _KEPT
        self._address = _address(self._memory)
        self._free: list[tuple[int, int]] = [(0, self._size)]
        """Where free stretches begin and how long they are, in order."""
        self._ended: deque[tuple[int, int, str]] = deque()
        """Slots that nothing refers to any more. Any thread may be the last that did."""
        self._shares = SharedRoom(self._size)

    @classmethod
    def of(cls, size: int, name: str | None = None) -> "Region":
        """A new one of so many bytes; raises `OSError` where there can be none."""
        descriptor = create(size)
        try:
            return cls(descriptor, name)
        except (OSError, InvalidInput):
            os.close(descriptor)
            raise

    @property
    def used(self) -> bool:
        """Whether anything lies in it."""
        return self._shares.taken > 0

    def place(self, data: Buffer) -> int | None:
        """Where in the region these bytes begin; None where they lie elsewhere or are few."""
        if len(data) < LEAST:
            return None
        start = _address(data) - self._address
        return start if 0 <= start <= self._size - len(data) else None

    def slot(self, size: int, share: Share) -> memoryview | None:
        """Room in it for a body of this tenant; None where there is none for it."""
        self._collect()
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._shares.refusal(share, length) is not None:
            return None
        for index, (start, free) in enumerate(self._free):
            if free >= length:
                self._free[index] = (start + length, free - length)
                if free == length:
                    del self._free[index]
                break
        else:
            return None
        self._shares.take(share, length)
        slot = np.frombuffer(self._memory, np.uint8, size, start)
        weakref.finalize(slot, self._end, start, length, share.tenant).atexit = False
        return slot.data

    def retire(self) -> None:
        """Keep no more pages than what is still referred to has: there will be no new slot."""
        self._kept = 0
        self._collect()
        for start, length in self._free:
            self._give_back(start, length)

    def _collect(self) -> None:
        while self._ended:
            start, length, tenant = self._ended.popleft()
            self._shares.give_back(tenant, length)
            self._join(start, length)

    def _end(self, start: int, length: int, tenant: str) -> None:
        if start + length > self._kept:
            self._give_back(start, length)
        self._ended.append((start, length, tenant))

    def _give_back(self, start: int, length: int) -> None:
        # Where the system does not know how, the pages stay for the next body.
        with contextlib.suppress(OSError):
            self._memory.madvise(mmap.MADV_REMOVE, start, length)

    def _join(self, start: int, length: int) -> None:
        insort(self._free, (start, length))
        joined = [self._free[0]]
        for (_, _), (begin, free) in pairwise(self._free):
            last, size = joined[-1]
            if last + size == begin:
                joined[-1] = (last, size + free)
            else:
                joined.append((begin, free))
        self._free = joined


def _address(data: Buffer | mmap.mmap) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])
