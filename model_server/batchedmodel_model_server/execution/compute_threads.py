"""How many threads compute a pass on the CPU: all that the container allows, or fewer.

The threads of a pass meet behind each operator, some hundred times in a pass. Where another process
takes a core from one of them, all others stand still until the scheduler gives it back, for
milliseconds each time. Two threads beside one busy process are many times slower than one thread
that keeps a core for itself. The kernel counts how long threads were ready to run and had no core.
Where that is too much of the passes' time, fewer threads compute. All are tried again once others
leave the cores alone. Where they do not, all are still tried now and then: this container may have
a right to more than it takes.

`next_choice` decides and is pure. `ComputeThreads` measures, and sets torch's number of threads.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 0.2
"""Passes of so long are judged together: longer than most interruptions last."""
TRIAL_SECONDS: Final = 0.05
"""Passes of so long judge a trial, as they may be slow."""
WAIT_SHARE_LIMIT: Final = 0.5
"""Of the passes' time, how long all threads together may wait for a core. Two threads compute 1.6
times as fast as one, so beyond this one is faster. Beside a sidecar at full load they wait for 0.1
to 0.35, beside a busy process for 0.7 to 1."""
FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 16.0
"""Until all threads are tried again where others leave the cores alone; it doubles each time that
they wait even so."""
PATIENCE_SECONDS: Final = 30.0
"""So much longer where others do not: one such trial may take as long as thirty passes."""
LOG_PAUSE_SECONDS: Final = 60.0
"""From a line about the number of threads to the next one."""
_STAT: Final = Path("/proc/stat")
_IDLE: Final = slice(4, 6)
"""Of the fields of a core: idle, and idle while a disk is awaited."""
_TASKS: Final = Path("/proc/self/task")
_NANOSECOND: Final = 1e-9
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How many threads compute from now on, and when all of them are tried again."""

    threads: int
    retry_at: float = math.inf
    """In monotonic seconds; infinite while all compute."""
    retry_seconds: float = FIRST_RETRY_SECONDS
    """From the next choice of fewer threads to the trial behind it."""
    is_trial: bool = False
    """Whether all compute to see if they wait as before."""

    @property
    def window_seconds(self) -> float:
        """Passes of so long decide about the next choice."""
        return TRIAL_SECONDS if self.is_trial else WINDOW_SECONDS


def next_choice(
    choice: Choice, *, available: int, wait_share: float, free_cores: float, now: float
) -> Choice:
    """The choice behind a window of passes.

    `available`: threads that the container allows. `wait_share`: seconds that all threads together
    waited for a core, by seconds of passes. `free_cores`: how many cores other processes left to
    this one. `now`: in monotonic seconds.
    """
    is_free = free_cores >= available - WAIT_SHARE_LIMIT
    if wait_share >= WAIT_SHARE_LIMIT and choice.threads > 1:
        is_wrong = is_free and choice.is_trial
        pause = min(LONGEST_RETRY_SECONDS, (2 if is_wrong else 1) * choice.retry_seconds)
        return Choice(
            threads=max(1, choice.threads - math.ceil(wait_share)),
            retry_at=now + pause,
            retry_seconds=pause,
        )
    if choice.threads == available:
        return Choice(threads=available)
    if now < choice.retry_at + (0.0 if is_free else PATIENCE_SECONDS):
        return choice
    return Choice(threads=available, retry_seconds=choice.retry_seconds, is_trial=True)


def waited_seconds(tasks: Path = _TASKS) -> float:
    """How long the threads of this process were ready to run and had no core, until now.

    The main thread is left out, as it runs the event loop. 0 where the kernel counts nothing.
    """
    waited, main = 0, str(os.getpid())
    for task in tasks.iterdir():
        if task.name == main:
            continue
        try:
            _, ready, _ = (task / "schedstat").read_text().split()
            waited += int(ready)
        except (OSError, ValueError):
            continue  # the thread has ended, or the kernel does not count
    return waited * _NANOSECOND


def idle_seconds(stat: Path = _STAT) -> float:
    """How long the cores that this process may use were idle, all together, until now.

    0 where the kernel does not say it.
    """
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
        ticks = [sum(map(int, line[_IDLE])) for line in lines if line[:1] and line[0] in cores]
    except (OSError, ValueError):
        return 0.0
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What the kernel has counted until some moment, in seconds."""

    at: float
    waited: float
    """By threads of this process that were ready to run."""
    computed: float
    """By all threads of this process."""
    idle: float
    """By all cores that it may use."""


def usage() -> Usage:
    """Until now."""
    return Usage(time.monotonic(), waited_seconds(), time.process_time(), idle_seconds())


class ComputeThreads:
    """The number of threads that compute a pass.

    OpenMP keeps that number for each thread by itself, so only the compute thread calls it.
    """

    def __init__(
        self, usage: Callable[[], Usage] = usage, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._usage: Final = usage
        self._clock: Final = clock
        self._available = 0
        self._choice = Choice(threads=0)
        self._logged = 0
        """How many compute by what was logged last."""
        self._silent_until = -math.inf
        self._seconds = 0.0
        self._before = Usage(0.0, 0.0, 0.0, 0.0)

    @contextmanager
    def computing(self, device: str) -> Iterator[None]:
        """Around one pass; does nothing where it is computed elsewhere than on the CPU."""
        torch = sys.modules.get("torch")
        if torch is None or device != "cpu":
            yield
            return
        if not self._available:
            self._available = self._logged = int(torch.get_num_threads())
            self._choice = Choice(threads=self._available)
            self._before = self._usage()
        began = self._clock()
        try:
            yield
        finally:
            self._seconds += self._clock() - began
            if self._available > 1 and self._seconds >= self._choice.window_seconds:
                self._choose()

    def _choose(self) -> None:
        now, since, before = self._usage(), self._before, self._choice
        left = (now.computed - since.computed) + (now.idle - since.idle)
        after = next_choice(
            before,
            available=self._available,
            wait_share=(now.waited - since.waited) / self._seconds,
            free_cores=left / (now.at - since.at),
            now=now.at,
        )
        self._choice, self._before, self._seconds = after, now, 0.0
        if after.threads != before.threads:
            sys.modules["torch"].set_num_threads(after.threads)
        self._log_change(now.at)

    def _log_change(self, now: float) -> None:
        """Log how many compute, if that is not what was logged last and no trial."""
        choice = self._choice
        if choice.is_trial or choice.threads == self._logged or now < self._silent_until:
            return
        self._logged, self._silent_until = choice.threads, now + LOG_PAUSE_SECONDS
        if choice.threads == self._available:
            _log.info("all %d threads compute again", self._available)
        else:
            _log.info(
                "other processes take cores from this one: %d of %d threads compute",
                choice.threads,
                self._available,
            )


COMPUTE_THREADS: Final = ComputeThreads()
"""Those of this process."""
