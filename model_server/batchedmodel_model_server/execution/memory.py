"""How large a batch may be for the device's memory: first guessed from smaller ones, then learnt.

`MemoryBudget` bounds the batches of the warm-up by what smaller ones took. On a GPU a batch that
does not fit is run again in parts; in a container without one the kernel ends the process, so
failing is no way to find the bound. `MemoryCap` goes on from there: it falls at once and grows
slowly (additive increase, multiplicative decrease: Chiu and Jain, 1989), as the runner tells it how
each batch went.

A cost is what the device pays for: rows x longest when padded, the sum of lengths when packed, or
rows.
"""

import ctypes
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from batchedmodel_model_server.machine import limits, text_of

_FALLS_TO: Final = 0.75  # of what did not fit
_GROWS_BY: Final = 0.05  # of what did not fit
_CLEAN_BATCHES: Final = 50
_NEARLY_FULL: Final = 0.5  # of the cap: a smaller batch proves nothing about it
_USABLE: Final = 0.8  # of the room: fragments, and shapes that take more than those measured
_STATUS: Final = Path("/proc/self/status")
_MACHINE: Final = Path("/proc/meminfo")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_FORGET_PEAK: Final = "5"
_KIBIBYTE: Final = 1024
Result = TypeVar("Result")


def lowered(cap: int | None, cost: int) -> int:
    """The cap after something of this cost did not fit."""
    falls_to = max(1, int(_FALLS_TO * cost))
    return falls_to if cap is None else min(cap, falls_to)


class MemoryCap:
    """The largest cost that one device is believed to hold."""

    def __init__(self) -> None:
        self.cost: int | None = None
        """None while everything has fitted."""
        self._step = 0
        self._clean = 0
        self._most: float = math.inf

    def begin_with(self, cost: int | None) -> None:
        """Nothing has failed yet, but no more than this should fit; never grows beyond it."""
        self.cost = cost
        self._most = math.inf if cost is None else cost
        self._step = max(1, int(_GROWS_BY * (cost or 0)))

    def outgrown(self, costs: Iterable[int]) -> None:
        """Batches of these costs did not fit."""
        for cost in costs:
            self.cost = lowered(self.cost, cost)
            self._step = max(1, int(_GROWS_BY * cost))
            self._clean = 0

    def fine(self, cost: int) -> None:
        """A batch of this cost did."""
        if self.cost is None or cost < _NEARLY_FULL * self.cost:
            return
        self._clean += 1
        if self._clean == _CLEAN_BATCHES:
            self._clean = 0
            self.cost = int(min(self._most, self.cost + self._step))


class MemoryMeter(Protocol):
    """Memory of the device, as far as this process uses it."""

    def begin(self) -> None:
        """Count from here: what is in use now is the model itself."""

    def taken(self) -> int:
        """Bytes in use at the worst moment since `begin`, beyond those in use then."""

    def room(self) -> int | None:
        """Bytes that were free for batches at `begin`; None when there is no known bound."""


class MemoryBudget:
    """What a batch may cost, by what smaller ones have taken."""

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter = meter
        self._seen: list[tuple[int, int]] = []
        self._ours = 0
        self._others = -1
        """Bytes that batches of callers have taken at most, where that is more than ours took."""
        meter.begin()

    def metered(self, cost: int, work: Callable[[], Result]) -> Result:
        """The result of a batch of this cost; its memory is known where it took the most so far."""
        before = self._meter.taken()
        if before > self._ours:
            self._others = before
        result = work()
        self._ours = self._meter.taken()
        if self._ours > self._others:
            self._seen.append((cost, self._ours))
        return result

    @property
    def cost(self) -> int | None:
        """The largest cost that should fit; None when nothing speaks against any."""
        room = self._meter.room()
        return None if room is None else affordable(int(_USABLE * room), self._seen)


def affordable(room: int, seen: list[tuple[int, int]]) -> int | None:
    """The cost that fits into `room` bytes, by pairs of a cost and of the most bytes taken so far.

    Goes by the slope between the largest cost and one of half that size or less: what libraries
    take once and for all is in both. None when the two do not differ.
    """
    cost, taken = max(seen, default=(0, 0))
    before, taken_before = max(
        (pair for pair in seen if 2 * pair[0] <= cost), default=(cost, taken)
    )
    if taken <= taken_before:
        return None
    return max(cost, cost + (room - taken) * (cost - before) // (taken - taken_before))


def meter_of(device: str) -> MemoryMeter:
    """The meter of a device that torch knows, or of this process's own memory."""
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        return _Gpu(torch, device)
    return _Host()


def free_bytes(device: str) -> int:
    """What is left of the memory of a device that torch knows, or of the container's."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    bounds = [int(text) for text in limits("memory.max") if text.isdecimal()]
    within = [max(0, bound - _field(_STATUS, "VmRSS")) for bound in bounds]
    return min([_field(_MACHINE, "MemAvailable"), *within])


class _Gpu:
    """What torch's allocator holds. Unproven: no GPU has run it."""

    def __init__(self, torch: Any, device: str) -> None:
        self._cuda = torch.cuda
        self._device = device
        self._base = 0
        self._room = 0

    def begin(self) -> None:
        self._base = int(self._cuda.memory_allocated(self._device))
        # What loading has left in torch's own cache is free for batches, too.
        cached = int(self._cuda.memory_reserved(self._device)) - self._base
        free, _ = self._cuda.mem_get_info(self._device)
        self._room = int(free) + cached
        self._cuda.reset_peak_memory_stats(self._device)

    def taken(self) -> int:
        return int(self._cuda.max_memory_allocated(self._device)) - self._base

    def room(self) -> int | None:
        return self._room


class _Host:
    """This process, within the limit of its container."""

    def __init__(self) -> None:
        self._base = 0

    def begin(self) -> None:
        # The C library keeps what larger batches returned. Passes that find their memory there
        # seem to take none, and nothing would bound the batches.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        try:
            _CLEAR_REFS.write_text(_FORGET_PEAK)
        except OSError:
            # Then only what exceeds the worst moment of the loading is seen.
            self._base = _field(_STATUS, "VmHWM")
        else:
            self._base = _field(_STATUS, "VmRSS")

    def taken(self) -> int:
        return _field(_STATUS, "VmHWM") - self._base

    def room(self) -> int | None:
        bounds = [int(text) for text in limits("memory.max") if text.isdecimal()]
        return max(0, min(bounds) - self._base) if bounds else None


def _field(file: Path, field: str) -> int:
    """A size in bytes that a file of the kernel tells; 0 where it does not."""
    for line in text_of(file).splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * _KIBIBYTE
    return 0
