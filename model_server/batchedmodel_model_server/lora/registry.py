"""The adapter registry: which there should be, what became of each, which are in main memory.

Pure. What is wanted is a level: names with their sources. To bring an adapter up is a job: find its
files, then read them. A new version takes the place of the old one once it is read, and not before;
a version that cannot be read changes nothing for callers of the one before it. A job that failed is
tried again, later each time. So is one whose files were seen to change.

The bound of memory holds for weights that are neither on the device nor in work; the least recently
used of them goes first, and is read from its files again when it is asked for. One that was
replaced or removed stays until nobody has asked for it for a while, as its files may be others.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_contract.manifest.source import Source
from batchedmodel_model_server.sources.folder import Content
from batchedmodel_scheduling.queue.items import NEVER

AT_ONCE: Final = 4
"""Jobs that ask a hub, and as many that do not: what is on a disk waits for no hub."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_LONGEST_LOCAL_PAUSE: Final = 4.0
"""For what is looked for on a disk, which costs little."""
_MOST_DOUBLINGS: Final = 6
Weights = Any
"""One adapter in main memory, as its bank made it: nothing here looks into it."""
QUIET_SECONDS: Final = 60.0
"""One that was replaced and that nobody asks for so long is forgotten."""


class Job(NamedTuple):
    """Bring up what this source holds."""

    name: str
    source: Source


@dataclass(slots=True)
class _Version:
    number: int
    phase: AdapterPhase
    content: Content | None = None
    reason: str = ""
    own_labels: bool = False


@dataclass(slots=True)
class _Wanted:
    source: Source
    due: float
    """When a job is to begin."""
    served: _Version | None = None
    coming: _Version | None = None
    """What is to take its place; FAILED where that could not be."""
    at_work: bool = False
    failures: int = 0
    """In a row."""


class Roster:
    """All adapters that are wanted, by name."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """`numbers`: from 1 on, each of them once."""
        self._numbers: Final = numbers
        self._wanted: Final[dict[str, _Wanted]] = {}
        self._at_work: Final = {True: 0, False: 0}
        """Jobs by whether they ask a hub."""

    def want(self, sources: Mapping[str, Source], now: float) -> list[int]:
        """From now on these are wanted and no others; the numbers that nobody is to ask for."""
        gone: list[int] = []
        for name in [name for name in self._wanted if name not in sources]:
            wanted = self._wanted.pop(name)
            if wanted.served is not None:
                gone.append(wanted.served.number)
        for name, source in sources.items():
            known = self._wanted.get(name)
            if known is None:
                coming = _Version(next(self._numbers), AdapterPhase.FETCHING)
                self._wanted[name] = _Wanted(source, now, coming=coming)
            elif known.source != source:
                known.source, known.due, known.failures = source, now, 0
        return gone

    def look_again(self, name: str, due: float) -> None:
        """Files of one that is wanted have changed: from then on it may be another version."""
        wanted = self._wanted[name]
        wanted.due, wanted.failures = due, 0

    def begin(self, now: float) -> list[Job]:
        """The jobs to begin now."""
        jobs: list[Job] = []
        due = [pair for pair in self._wanted.items() if pair[1].due <= now and not pair[1].at_work]
        for name, wanted in sorted(due, key=lambda pair: pair[1].due):
            asks_hub = _asks_hub(wanted.source)
            if self._at_work[asks_hub] < AT_ONCE:
                wanted.at_work, wanted.due = True, NEVER
                self._at_work[asks_hub] += 1
                jobs.append(Job(name, wanted.source))
        return jobs

    def found(self, job: Job, content: Content) -> int | None:
        """A job has these files: the number under which to read them; None: it need not."""
        wanted = self._of(job)
        if wanted is None:
            return None
        if wanted.served is not None and wanted.served.content == content:
            wanted.coming = None
            wanted.failures = 0
            return None
        coming = wanted.coming
        if coming is None:
            coming = wanted.coming = _Version(next(self._numbers), AdapterPhase.LOADING)
        elif coming.phase is AdapterPhase.FAILED and coming.content == content:
            return None  # it would fail again
        coming.phase, coming.reason, coming.content = AdapterPhase.LOADING, "", content
        return coming.number

    def loaded(self, job: Job, number: int, *, own_labels: bool = False) -> int | None:
        """It is read, and READY: the number of the one whose place it takes, if there was one.

        `own_labels`: whether it classifies by others than the model. Raises `KeyError` where it is
        not wanted any more.
        """
        wanted = self._of(job)
        if wanted is None or wanted.coming is None or wanted.coming.number != number:
            raise KeyError(number)
        replaced, wanted.served, wanted.coming = wanted.served, wanted.coming, None
        wanted.served.phase, wanted.served.own_labels = AdapterPhase.READY, own_labels
        wanted.failures = 0
        return None if replaced is None else replaced.number

    def failed(self, job: Job, reason: str, now: float, *, passing: bool = False) -> None:
        """It came to nothing. `passing`: the same files may be read another time."""
        wanted = self._of(job)
        if wanted is None:
            return
        coming = wanted.coming
        if coming is None:
            # The files of one that is served cannot be found any more.
            coming = wanted.coming = _Version(next(self._numbers), AdapterPhase.FAILED)
        if passing or coming.phase is AdapterPhase.FETCHING:
            coming.content = None
        coming.phase, coming.reason = AdapterPhase.FAILED, reason
        self._again(wanted, now)

    def ended(self, job: Job, now: float) -> None:
        """A job is over, whatever came of it: called once for each."""
        self._at_work[_asks_hub(job.source)] -= 1
        wanted = self._wanted.get(job.name)
        if wanted is None or not wanted.at_work:
            return
        wanted.at_work = False
        if wanted.source != job.source:
            wanted.due = min(wanted.due, now)
        elif wanted.coming is not None and wanted.due == NEVER:
            self._again(wanted, now)

    def states(self) -> tuple[AdapterState, ...]:
        """Of each name what serves and what is to take its place."""
        return tuple(
            AdapterState(
                name=name,
                number=one.number,
                phase=one.phase,
                reason=one.reason,
                own_labels=one.own_labels,
            )
            for name, wanted in sorted(self._wanted.items())
            for one in (wanted.served, wanted.coming)
            if one is not None
        )

    @property
    def settled(self) -> bool:
        """Whether each one was brought up, or could not be."""
        return all(
            one.coming is None or one.coming.phase is AdapterPhase.FAILED
            for one in self._wanted.values()
        )

    def _of(self, job: Job) -> _Wanted | None:
        """What a job is for; None where it was removed, or has another source meanwhile."""
        wanted = self._wanted.get(job.name)
        return None if wanted is None or wanted.source != job.source else wanted

    def _again(self, wanted: _Wanted, now: float) -> None:
        longest = _LONGEST_PAUSE if _asks_hub(wanted.source) else _LONGEST_LOCAL_PAUSE
        pause = min(longest, _FIRST_PAUSE * 2 ** min(wanted.failures, _MOST_DOUBLINGS))
        wanted.failures += 1
        wanted.due = min(wanted.due, now + pause)


def _asks_hub(source: Source) -> bool:
    return source.hugging_face is not None


@dataclass(slots=True, eq=False)
class Kept:
    """One version of an adapter."""

    number: Final[int]
    content: Final[Content]
    """What it was read from."""
    weights: Weights | None
    """None: not in main memory now."""
    size: int
    labels: Final[tuple[str, ...] | None] = None
    """Of its own classification."""
    in_work: int = 0
    retired: bool = False
    quiet_since: float = NEVER
    """Of one that is retired: when it was asked for last."""


class AdapterStore:
    """Those that were read, by number."""

    def __init__(self, bound: int | None) -> None:
        """`bound`: bytes; None for no bound."""
        self._bound: Final = bound
        self._kept: Final[OrderedDict[int, Kept]] = OrderedDict()
        """The one that was used last at the end."""

    def add(self, kept: Kept) -> None:
        """Another one was read."""
        self._kept[kept.number] = kept

    def hold(self, number: int) -> Kept | None:
        """Somebody needs it until `release`; None where it is unknown."""
        kept = self._kept.get(number)
        if kept is not None:
            kept.in_work += 1
            self._kept.move_to_end(number)
        return kept

    def labels_of(self, number: int) -> tuple[str, ...] | None:
        """Of an adapter's own classification, if it is here and has any."""
        kept = self._kept.get(number)
        return None if kept is None else kept.labels

    def release(self, kept: Kept, now: float) -> None:
        """The end of what `hold` began."""
        kept.in_work -= 1
        if kept.retired:
            kept.quiet_since = now

    def retire(self, numbers: Iterable[int], now: float) -> None:
        """Another version takes the place of these, or none: late requests may still come."""
        for number in numbers:
            kept = self._kept.get(number)
            if kept is not None:
                kept.retired, kept.quiet_since = True, now

    def expire(self, now: float) -> list[int]:
        """Forget those that are retired and that nobody needs."""
        over = [
            number
            for number, kept in self._kept.items()
            if kept.retired and not kept.in_work and kept.quiet_since + QUIET_SECONDS <= now
        ]
        for number in over:
            del self._kept[number]
        return over

    def make_room(self, resident: Collection[int]) -> None:
        """Let weights go until the bound holds again; `resident`: what the device has."""
        if self._bound is None:
            return
        idle = [
            kept
            for number, kept in self._kept.items()
            if kept.weights is not None and not kept.in_work and number not in resident
        ]
        over = sum([kept.size for kept in idle]) - self._bound
        for kept in idle:
            if over <= 0:
                return
            if not kept.retired:
                kept.weights = None
                over -= kept.size
