"""Memory that the model server sees as well: large bodies lie there.

A region is made when the link connects and retired when its connection ends. A row of a large body
never travels: the batch says where it lies. A slot is free again when nothing refers to it any
more, be it a row that waits or a batch on its way. Where there is no such memory, or no room in it,
all of it travels.
"""

import contextlib
import mmap
import os
import weakref
from bisect import insort
from collections import deque
from itertools import pairwise
from typing import Final

import numpy as np

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.batches import Place
from batchedmodel_contract.link.region import MAX_BYTES, MIN_ITEM_BYTES, create, mapped
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.queue.shared_room import SharedRoom

_KEPT: Final = 64 << 20
"""Bytes at the beginning that are kept when they are free: three batches of 32 images. To fetch
fresh pages for each row takes as long as to copy it."""


class SharedRegions:
    """The region that is shared at present, if any. Used by one loop."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all bodies that are held."""
        self._limit: Final = limit
        self._rows: Region | None = None

    def create(self) -> "Region":
        """A new one for a connection; raises `OSError` where there can be none."""
        return Region.of(min(self._limit, MAX_BYTES))

    def use(self, region: "Region") -> None:
        """Let bodies lie in it, which the server has taken."""
        self._rows = region

    def retire(self) -> None:
        """Use nothing of the present one again; what is referred to stays for its readers."""
        if self._rows is not None:
            self._rows.retire()
        self._rows = None

    def room(self, size: int, share: Share) -> memoryview | None:
        """Memory for a body of this tenant; None where there is none for it."""
        return None if self._rows is None else self._rows.slot(size, share)

    @property
    def place(self) -> Place | None:
        """Where a batch's items lie in the region; None where nothing lay there lately."""
        region = self._rows
        return region.place if region is not None and region.used else None


class Region:
    """One region: what of it is free, and where the rest lies."""

    def __init__(self, descriptor: int) -> None:
        """Of that descriptor, which is closed when nothing refers to it; raises `OSError`."""
        self.descriptor: Final = descriptor
        self._memory = mapped(descriptor, writable=True)
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.size: Final = len(self._memory)
        self._warm_bytes = _KEPT
        self._address = _address(self._memory)
        self._free: list[tuple[int, int]] = [(0, self.size)]
        """Where free stretches begin and how long they are, in order."""
        self._ended: deque[tuple[int, int, str]] = deque()
        """Slots that nothing refers to any more. Any thread may be the last that did."""
        self._shares = SharedRoom(self.size)

    @classmethod
    def of(cls, size: int) -> "Region":
        """A new one of so many bytes; raises `OSError` where there can be none."""
        descriptor = create(size)
        try:
            return cls(descriptor)
        except (OSError, InvalidInput):
            os.close(descriptor)
            raise

    @property
    def used(self) -> bool:
        """Whether anything lies in it."""
        return self._shares.in_use > 0

    def place(self, data: Buffer) -> int | None:
        """Where in the region these bytes begin; None where they lie elsewhere or are few."""
        if len(data) < MIN_ITEM_BYTES:
            return None
        start = _address(data) - self._address
        return start if 0 <= start <= self.size - len(data) else None

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
        self._warm_bytes = 0
        self._collect()
        for start, length in self._free:
            self._give_back(start, length)

    def _collect(self) -> None:
        while self._ended:
            start, length, tenant = self._ended.popleft()
            self._shares.give_back(tenant, length)
            self._join(start, length)

    def _end(self, start: int, length: int, tenant: str) -> None:
        if start + length > self._warm_bytes:
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
