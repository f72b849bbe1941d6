"""The first bound on a batch, from what the batches of the warm-up took.

Better than to find it by failing: on a GPU a batch that does not fit is run again in parts, and in
a container without one the kernel ends the process. Called by the warm-up, smallest batch first;
the cap learns on from there.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any, Final, Protocol

from batchedmodel_model_server.system import cgroup

_USABLE: Final = 0.8  # of the room: fragments, and shapes that take more than those measured
_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_FORGET_PEAK: Final = "5"
_KIBIBYTE: Final = 1024


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
        meter.begin()

    def ran(self, cost: int) -> None:
        """A batch of this cost has just been run."""
        self._seen.append((cost, self._meter.taken()))

    @property
    def cost(self) -> int | None:
        """The largest cost that should fit; None when nothing speaks against any."""
        room = self._meter.room()
        return None if room is None else affordable(int(_USABLE * room), self._seen)


def affordable(room: int, seen: list[tuple[int, int]]) -> int | None:
    """The cost that fits into `room` bytes, by pairs of a cost and of the most bytes taken so far.

    The slope between the largest cost and one of half that size or less goes on: what is taken once
    and for all, by libraries and their buffers, is in both. None when the two do not differ.
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
        _give_back_what_is_free()
        try:
            _CLEAR_REFS.write_text(_FORGET_PEAK)
        except OSError:
            # Then only what exceeds the worst moment of the loading is seen.
            self._base = _status("VmHWM")
        else:
            self._base = _status("VmRSS")

    def taken(self) -> int:
        return _status("VmHWM") - self._base

    def room(self) -> int | None:
        bounds = [int(text) for text in cgroup.limits("memory.max") if text.isdecimal()]
        return max(0, min(bounds) - self._base) if bounds else None


def _give_back_what_is_free() -> None:
    """Have the C library return what larger batches before have left in it.

    Passes that find their memory there seem to take none, and nothing would bound the batches.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    """A size in bytes that the kernel tells of this process; 0 where it does not."""
    for line in cgroup.text_of(_STATUS).splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * _KIBIBYTE
    return 0
