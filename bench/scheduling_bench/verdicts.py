"""What a run was worth beside its shares: by length and by priority."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from batchedmodel_cli.simulator import verdicts
from batchedmodel_cli.simulator.engine import Request, Run
from batchedmodel_scheduling.queue.items import Priority

_Name = TypeVar("_Name", bound=int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The simulator's verdict, and parts in time."""

    whole: verdicts.Verdict
    by_length: dict[int, float]
    """By upper edge of the length bucket; only buckets that have requests."""
    by_priority: dict[Priority, float]

    @property
    def on_time_share(self) -> float:
        """Of all requests."""
        return self.whole.in_time_share

    @property
    def late_after_admission_share(self) -> float:
        """Of those taken: answered late, or expired."""
        admitted = 1 - self.whole.refused_share
        return (self.whole.late_share + self.whole.expired_share) / admitted if admitted else 0.0

    @property
    def worst_to_best_length(self) -> float:
        """On-time share of the worst length bucket, as a part of that of the best."""
        shares = self.by_length.values()
        return min(shares) / max(shares) if shares and max(shares) > 0 else 0.0


def verdict(requests: Sequence[Request], run: Run, *, edges: Sequence[int] = ()) -> Verdict:
    """Judge a run of at least one request; a length beyond the edges counts to the last one."""
    hits = [0 <= at <= one.due for one, at in zip(requests, run.finished, strict=True)]
    buckets = (edges[min(bisect_left(edges, one.length), len(edges) - 1)] for one in requests)
    return Verdict(
        whole=verdicts.verdict(requests, run),
        by_length=_shares(buckets, hits) if edges else {},
        by_priority=_shares((one.priority for one in requests), hits),
    )


def _shares(names: Iterable[_Name], in_time: Sequence[bool]) -> dict[_Name, float]:
    """In ascending order of the names."""
    members: defaultdict[_Name, list[bool]] = defaultdict(list)
    for name, hit in zip(names, in_time, strict=True):
        members[name].append(hit)
    return {name: sum(hits) / len(hits) for name, hits in sorted(members.items())}
