"""Decides what follows when a process ends by itself, and what a person's Ctrl-C means.

Pure: the supervisor tells it what happened and when, and carries out the answer.
"""

import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batchedmodel_contract.processes.environment import EXIT_CANNOT_LISTEN, EXIT_WRONG_SETTINGS

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 30.0
"""A process that lived this long starts its count of failures anew."""
ONE_INTERRUPT_SECONDS: Final = 0.5
"""Signals within this time are one: a terminal, `make` and `timeout` may each deliver theirs."""


class Verdict(StrEnum):
    """What follows the end of a process."""

    RESTART = "restart"
    CANNOT_LISTEN = "cannot_listen"
    WRONG_SETTINGS = "wrong_settings"


class Interrupt(StrEnum):
    """What a signal to stop asks for."""

    STOP = "stop"
    REPEAT = "repeat"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a process. Times in monotonic seconds."""

    name: str
    started_at: float
    ended_at: float
    returncode: int
    """As `subprocess` gives it: negative for a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, and why."""

    verdict: Verdict
    sentence: str
    failures: int
    """Ends in a row, this one included; handed in with the next end."""
    start_at: float
    """When to start again; without meaning unless the verdict is to restart."""


def after_end(ended: Ended, failures: int) -> Decision:
    """What follows this end, which came after `failures` others in a row."""
    how = described(ended.returncode)
    final = _FINAL.get(ended.returncode)
    if final is not None:
        verdict, advice = final
        return Decision(
            verdict=verdict,
            sentence=f"{ended.name} ended with {how}: {advice}",
            failures=failures + 1,
            start_at=ended.ended_at,
        )
    if ended.ended_at - ended.started_at >= STEADY_SECONDS:
        failures = 0
    # The exponent is bounded so that a process failing for days cannot overflow a float.
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures, 16))
    return Decision(
        verdict=Verdict.RESTART,
        sentence=f"{ended.name} ended with {how}; starting it again in {pause:g} s",
        failures=failures + 1,
        start_at=ended.ended_at + pause,
    )


def after_interrupt(now: float, first: float | None) -> Interrupt:
    """What a signal asks for when the first one came at `first`; None: this is the first."""
    if first is None:
        return Interrupt.STOP
    return Interrupt.REPEAT if now - first < ONE_INTERRUPT_SECONDS else Interrupt.KILL


def described(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


_FINAL: Final = {
    EXIT_CANNOT_LISTEN: (
        Verdict.CANNOT_LISTEN,
        "it cannot listen there. Is another program using the port? "
        "--port chooses another, as PORT=8001 does with make",
    ),
    EXIT_WRONG_SETTINGS: (
        Verdict.WRONG_SETTINGS,
        "it cannot use its settings, see its message above",
    ),
}
