"""Memory that the model server sees as well: large bodies lie there, and it puts answers there.

Two regions, made when the link connects and retired when its connection ends. A row of a large body
never travels: the batch says where it lies. A batch gets room for the rows of its answer, as large
as the largest of lately; the server may write there until it has answered. A slot is free again
when nothing refers to it any more, be it a row that waits, a batch on its way or an answer that is
read. Where there is no such memory, or no room in it, all of it travels.
"""

import contextlib
import mmap
import os
import weakref
from bisect import insort
from collections import deque
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from batchedmodel_contract.inference.batch import AnswerRoom, BatchReply
from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.batches import Place
from batchedmodel_contract.link.region import MAX_BYTES, MIN_ITEM_BYTES, create, mapped
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_scheduling.queue.shared_room import SharedRoom
from batchedmodel_sidecar.body.byte_budget import ByteBudget

_KEPT: Final = 64 << 20
"""Bytes at the beginning that are kept when they are free: three batches of 32 images. To fetch
fresh pages for each row takes as long as to copy it."""
_ANSWERS_OF_BUDGET: Final = 4
"""Part of the budget of bodies. A row that nobody reads keeps its batch's whole room."""
_MAX_BATCHES: Final = 3
"""Whose answers have room at the same time, whatever their size: two at the server, one unread."""
_FORGOTTEN: Final = 8
"""Part of the largest row's size that each answer with smaller rows takes from it."""
_PADDING_BYTES: Final = 64
"""For each row beside its own bytes: items begin at multiples of eight."""


class SharedRegions:
    """The regions that are shared at present, if any. Used by one loop."""

    def __init__(self, budget: ByteBudget) -> None:
        """`budget`: where room for answers counts until the server is done with it."""
        self._budget: Final = budget
        self._rows: Region | None = None
        self._answers: Region | None = None
        self._at_server: dict[int, memoryview] = {}
        """Room in which the server may write, by the batch's number."""
        self._row_bytes = 0
        """Of the largest row of an answer lately, its small items left out."""

    def create(self) -> "RegionPair":
        """New ones for a connection; raises `OSError` where there can be none."""
        limit = self._budget.limit
        answers = max(MIN_ITEM_BYTES, min(limit // _ANSWERS_OF_BUDGET, MAX_BYTES))
        return RegionPair(Region.of(min(limit, MAX_BYTES)), Region.of(answers))

    def use(self, pair: "RegionPair") -> None:
        """Let bodies and answers lie in these, which the server has taken."""
        self._rows, self._answers = pair

    def retire(self) -> None:
        """Use nothing of the present ones again; what is referred to stays for its readers."""
        for region in (self._rows, self._answers):
            if region is not None:
                region.retire()
        self._rows = self._answers = None
        for number in list(self._at_server):
            self.answered(number)

    def room(self, size: int, share: Share) -> memoryview | None:
        """Memory for a body of this tenant; None where there is none for it."""
        return None if self._rows is None else self._rows.slot(size, share)

    @property
    def place(self) -> Place | None:
        """Where a batch's items lie in the region; None where nothing lay there lately."""
        region = self._rows
        return region.place if region is not None and region.used else None

    def answer_room(self, batch: int, rows: int) -> AnswerRoom | None:
        """Room for the answer to a batch of this number; None where it is sent whole."""
        region = self._answers
        if region is None or not self._row_bytes:
            return None
        size = min(rows * (self._row_bytes + _PADDING_BYTES), region.size // _MAX_BATCHES)
        if size < MIN_ITEM_BYTES or not self._budget.hold_room(size):
            return None
        memory = region.slot(size, NOBODY)
        if memory is None:
            self._budget.give_room_back(size)
            return None
        start = region.place(memory)
        assert start is not None, "a slot lies outside its region: our bug"
        self._at_server[batch] = memory
        return AnswerRoom(start, size)

    def answered(self, batch: int) -> memoryview | None:
        """The room that the server had for a batch, if any; it writes there no more."""
        memory = self._at_server.pop(batch, None)
        if memory is not None:
            self._budget.give_room_back(len(memory))
        return memory

    def learn(self, reply: BatchReply, sent_bytes: int, *, had_room: bool) -> None:
        """See how large an answer was, of which so many bytes were sent."""
        sizes = [0] * len(reply.statuses)
        if had_room or sent_bytes >= MIN_ITEM_BYTES:
            for output in reply.outputs:
                if output.datatype is not Datatype.BYTES:
                    for row, item in enumerate(output.items()):
                        sizes[row] += len(item) if len(item) >= MIN_ITEM_BYTES else 0
        # Where answers differ in size, one of small ones says little of the next.
        known = max(max(sizes, default=0), self._row_bytes - self._row_bytes // _FORGOTTEN)
        self._row_bytes = known if known >= MIN_ITEM_BYTES else 0


class Region:
    """One region: what of it is free, and where the rest lies."""

    def __init__(self, descriptor: int) -> None:
        """Of that descriptor, which is closed when nothing refers to it; raises `OSError`."""
        self.descriptor: Final = descriptor
        self._memory = mapped(descriptor, writable=True)
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.size: Final = len(self._memory)
        self._kept = _KEPT
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
        return self._shares.taken > 0

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


class RegionPair(NamedTuple):
    """What one connection shares."""

    rows: Region
    """Which the server reads."""
    answers: Region
    """In which it writes."""


def _address(data: Buffer | mmap.mmap) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])
