"""What a model's pods teach about its capacity, and when that is worth being written down. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_kube.capacity import Capacity

LONGEST_FOUND_STARTUP_SECONDS: Final = 600.0
"""A longer start that nobody watched is more often a pod that was ready before."""
_NEWS: Final = 0.10
"""A number is written anew when it differs by more than this share of what is written."""
_STARTUP_NEWS: Final = 0.25
"""The same for starts, no two of which take equally long. The HPA's windows follow them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyPod:
    """What one ready pod shows."""

    revision: str
    created: str
    """When, as RFC 3339 writes it, so that texts compare as times do."""
    startup_seconds: float | None
    watched: bool
    """Whether it was seen before it was ready. Else it may have got ready for a second time."""
    rows_per_second: float | None
    shortest_latency_seconds: float | None


def learnt(pods: Sequence[ReadyPod], before: Capacity | None) -> Capacity | None:
    """What is known of the youngest ready pod's revision; `before` while no pod is ready.

    What is remembered of the same revision holds until pods show something else. A start that
    nobody watched shows nothing: a pod that gets ready again looks as if it had taken long.
    """
    if not pods:
        return before
    revision = max(pods, key=lambda pod: (pod.created, pod.revision)).revision
    newest = [pod for pod in pods if pod.revision == revision]
    known = before if before is not None and before.revision == revision else None
    starts = _median(pod.startup_seconds for pod in newest if pod.watched)
    if starts is None and known is not None:
        starts = known.startup_seconds
    if starts is None:
        found = _median(pod.startup_seconds for pod in newest)
        starts = None if found is None else min(found, LONGEST_FOUND_STARTUP_SECONDS)
    rate = _median(pod.rows_per_second for pod in newest)
    latency = _median(pod.shortest_latency_seconds for pod in newest)
    if known is not None:
        rate = known.rows_per_second if rate is None else rate
        latency = known.shortest_latency_seconds if latency is None else latency
    return Capacity(
        revision=revision,
        rows_per_second=rate,
        startup_seconds=starts,
        shortest_latency_seconds=latency,
    )


def is_news(now: Capacity, written: Capacity | None) -> bool:
    """Whether it differs from what is written by more than what measurements differ."""
    if written is None or written.revision != now.revision:
        # The operator made no pod without a revision, and one that shows nothing is no news.
        numbers = (now.rows_per_second, now.startup_seconds, now.shortest_latency_seconds)
        return bool(now.revision) and any(number is not None for number in numbers)
    return (
        _differ(now.rows_per_second, written.rows_per_second, _NEWS)
        or _differ(now.startup_seconds, written.startup_seconds, _STARTUP_NEWS)
        or _differ(now.shortest_latency_seconds, written.shortest_latency_seconds, _NEWS)
    )


def _differ(now: float | None, written: float | None, share: float) -> bool:
    if now is None:
        return False
    return written is None or abs(now - written) > share * written


def _median(found: Iterable[float | None]) -> float | None:
    known = [one for one in found if one is not None and one > 0]
    # The lower one of two, so that it is the number of a pod that there is.
    return statistics.median_low(known) if known else None
