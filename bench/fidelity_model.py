"""What the simulator says of the requests that real processes have served.

Called by the benchmark `fidelity`. Pure: it takes what was measured and starts nothing.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from batchedmodel_cli.simulator.engine import NANOSECONDS
from batchedmodel_contract.manifest.batching import BatchSettings
from same_arrivals import finished, latencies, percentiles, poisson
from scheduling_bench.affine import Affine
from scheduling_bench.scenarios import MAX_ROWS, equal

CONSTANTS_SHARE: Final = 0.2
"""Of cap99: the only load at which anything is measured that the simulator then uses."""
SHARES: Final = (0.5, 0.8)
TARGET_SECONDS: Final = 0.05
SETTINGS: Final = BatchSettings(max_batch_size=MAX_ROWS, target_seconds=TARGET_SECONDS)
"""Of both sides. Late answers are served, so that both serve everything."""

_STEPS: Final = 5  # each leaves less than half of the error


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device by its curve. `cap99` is what bench/scheduling.py finds, in requests per second."""

    name: str
    curve: Affine
    cap99: float
    captured: tuple[int, ...] = ()
    """Sizes of batches; the others take as long as the next of them."""

    @property
    def parameters(self) -> Mapping[str, str]:
        """Of the simulated handler, beside those of the curve."""
        return {"capturedRows": ",".join(map(str, self.captured))} if self.captured else {}

    def seconds(self, lengths: Sequence[int]) -> float:
        """Of a batch: the device is a `Curve` itself."""
        rows = len(lengths)
        if self.captured and rows <= self.captured[-1]:
            rows = self.captured[bisect_left(self.captured, rows)]
        return self.curve.seconds([1] * rows)


def _device(name: str, cap99: float) -> Device:
    return Device(name=name, curve=equal(name, "Poisson", cap99).curve, cap99=cap99)


_A: Final = _device("A", 730.0)
_STEPPED: Final = replace(_A, name="A in captured sizes", captured=(3, 8, 20, 64), cap99=630.0)
DEVICES: Final = (_A, _device("B", 2700.0), _STEPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a request's way costs beside the device, in seconds."""

    hand_off: float
    """From a batch's release until the device could begin it."""
    rest: float
    """From the caller to the policy, and from the device back to the first caller of a batch."""
    per_row: float
    """From one caller's answer to the next one's of the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What real processes made of arrivals, in seconds."""

    outside: Sequence[float]
    """Latencies as callers have them, in the order of the answers."""
    inside: float
    """Mean time from a request's acceptance to its end, as the sidecar has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p99: float


def arrivals(device: Device, share: float, seed: int, seconds: float) -> list[int]:
    """Poisson arrivals at this share of cap99: nanoseconds, in whole microseconds."""
    name = f"fidelity/{device.name}/{share}"
    return poisson(share * device.cap99, seconds, seed=seed, name=name)


def constants_of(device: Device, times: Sequence[int], measured: Measured) -> Constants:
    """The constants with which the simulator has the mean latencies of a light load.

    A batch's way to the device takes as long as its way back, and both together explain what the
    sidecar saw. What callers saw beyond that, but for the answers that each had to wait for, is the
    rest.
    """
    hand_off = 0.0
    for _ in range(_STEPS):
        mean = float(_simulated(device, times, hand_off).seconds.mean())
        # A longer way there makes others wait as well, so the mean grows faster than the way.
        hand_off = max(0.0, hand_off + (measured.inside - mean - hand_off) / 2)
    found = _simulated(device, times, hand_off)
    per_row = _between_answers(device, times, measured.outside)
    explained = float((found.seconds + per_row * found.place).mean())
    rest = float(np.mean(measured.outside)) - explained
    return Constants(hand_off=hand_off, rest=max(0.0, rest), per_row=per_row)


def foretold(
    device: Device, times: Sequence[int], constants: Constants, *, since: float
) -> Percentiles:
    """Latencies of the requests that arrive `since` seconds after the start or later."""
    seconds = foretold_seconds(device, times, constants)
    p50, p99 = percentiles(seconds[np.array(times) >= since * NANOSECONDS] * 1e3, 50, 99)
    return Percentiles(p50=p50, p99=p99)


def foretold_seconds(
    device: Device, times: Sequence[int], constants: Constants
) -> NDArray[np.float64]:
    """Latency of each request."""
    found = _simulated(device, times, constants.hand_off)
    return found.seconds + constants.rest + constants.per_row * found.place


def gap_percent(real: float, simulated: float) -> float:
    """By how much the real figure is above the simulated one."""
    return 100 * (real / simulated - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulated:
    seconds: NDArray[np.float64]
    """From arrival to the end of the device's work, by request."""
    place: NDArray[np.float64]
    """How many of the same batch are answered before."""


def _simulated(device: Device, times: Sequence[int], hand_off: float) -> _Simulated:
    ended = finished(device, SETTINGS, times, hand_off_seconds=hand_off)
    # One device ends one batch at a time, and takes requests with equal targets in order.
    _, first, batch = np.unique(ended, return_index=True, return_inverse=True)
    return _Simulated(
        seconds=latencies(times, ended),
        place=np.arange(len(times), dtype=np.float64) - first[batch],
    )


def _between_answers(device: Device, times: Sequence[int], outside: Sequence[float]) -> float:
    """Median time between answers of one batch; 0.0 if no batch had two.

    Answers come in the order of the arrivals, and those of two batches at least a forward pass
    apart.
    """
    answered = np.array(times) / NANOSECONDS + np.array(outside)
    gaps = np.diff(answered)
    same = gaps[(gaps > 0) & (gaps < device.curve.fixed / 2)]
    return float(np.median(same)) if len(same) else 0.0
