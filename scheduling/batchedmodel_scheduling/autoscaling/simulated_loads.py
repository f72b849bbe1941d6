"""Loads for the simulated loop: rows a second as a function of time, and how often they turn.

Amounts are in pods' capacities at full batches, so that a load says how many pods it keeps busy.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is offered."""

    name: str
    seconds: float
    at: Callable[[float], float]
    """Pods' capacities offered at a time in seconds since the start."""
    changes: int
    """How often it changes for good: steps, ends of a ramp's climb, peaks and troughs."""


def steps(name: str, *parts: tuple[float, float]) -> Load:
    """Constant parts, each with its seconds and its amount."""
    ends, total = [], 0.0
    for seconds, _ in parts:
        total += seconds
        ends.append(total)

    def at(now: float) -> float:
        return parts[min(bisect_right(ends, now), len(parts) - 1)][1]

    return Load(name=name, seconds=total, at=at, changes=len(parts) - 1)


def ramp(name: str, low: float, high: float, *, rest: float, climb: float) -> Load:
    """Rests low, climbs evenly, rests high, falls evenly, rests low."""
    turns = (rest, rest + climb, 2 * rest + climb, 2 * rest + 2 * climb)

    def at(now: float) -> float:
        up = min(max(0.0, (now - turns[0]) / climb), 1.0)
        down = min(max(0.0, (now - turns[2]) / climb), 1.0)
        return low + (high - low) * (up - down)

    return Load(name=name, seconds=turns[3] + rest, at=at, changes=2)


def sine(name: str, low: float, high: float, *, period: float, periods: int) -> Load:
    """Begins at its trough."""

    def at(now: float) -> float:
        return low + (high - low) * (1 - math.cos(2 * math.pi * now / period)) / 2

    return Load(name=name, seconds=period * periods, at=at, changes=2 * periods)


def recorded(name: str, times: Sequence[float], *, bin_seconds: float, mean: float) -> Load:
    """A trace's rate in each bin, scaled to a mean amount; each bin counts as a change."""
    count = max(1, math.ceil((times[-1] - times[0]) / bin_seconds))
    bins = [0] * count
    for time in times:
        bins[min(int((time - times[0]) / bin_seconds), count - 1)] += 1
    scale = mean * count / len(times)

    def at(now: float) -> float:
        return bins[min(int(now / bin_seconds), count - 1)] * scale

    return Load(name=name, seconds=count * bin_seconds, at=at, changes=count)


def part(load: Load, *, start: float, seconds: float) -> Load:
    """A while of another load, whose changes are taken to lie evenly in it."""
    changes = round(load.changes * seconds / load.seconds)
    return Load(
        name=load.name, seconds=seconds, at=lambda now: load.at(start + now), changes=changes
    )
