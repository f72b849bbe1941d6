"""What is remembered of a BatchedModel between two reconciles, and how soon something is tried
again.

`plan`, `observe` and `apply` make a new memory in each reconcile. Losing it costs applies that
change nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from batchedmodel_contract.lora import AdapterState
from batchedmodel_operator.kinds import Kind

_FIRST_DELAY_SECONDS: Final = 0.5
LONGEST_DELAY_SECONDS: Final = 60.0
"""Between two questions to a pod, and between two repairs, whatever happens meanwhile."""
AT_ONCE: Final = 5
"""Repairs in a row that do not wait: a person's edit is undone at once."""
_SUPERSEDED: Final = 4
"""Questions about settings of which others have taken the place that count: eight seconds."""
_FIRST_REPAIR_DELAY_SECONDS: Final = 2.0
CALM_SECONDS: Final = 120.0
"""Beyond the delay. What is changed after it counts as the first change."""
_MOST_DOUBLINGS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """How often something was tried in a row, and when it may be tried again."""

    times: int
    again_at: float
    """Monotonic seconds."""

    def waits(self, now: float) -> bool:
        """Whether it is too early for another try."""
        return now < self.again_at


def asked_again(before: Tries | None, now: float) -> Tries:
    """A question that is put now. The time until the next one doubles with each."""
    times = 0 if before is None else before.times
    delay = _FIRST_DELAY_SECONDS * 2.0 ** min(times, _MOST_DOUBLINGS)
    return Tries(times=times + 1, again_at=now + min(delay, LONGEST_DELAY_SECONDS))


def last_question(
    inquiries: Mapping[tuple[str, str], Tries], uid: str, settings: str, now: float
) -> Tries | None:
    """What counts as the last question to a pod about settings.

    That may be one about settings before these, which it has not taken up yet: it is asked, and
    told, more rarely where they are edited faster than it follows.
    """
    if (asked := inquiries.get((uid, settings))) is not None:
        return asked
    before = next((tries for (of, _), tries in inquiries.items() if of == uid), None)
    if before is None:
        return None
    soon = now + _FIRST_DELAY_SECONDS * 2.0**_SUPERSEDED
    return Tries(times=min(before.times, _SUPERSEDED), again_at=min(before.again_at, soon))


def repaired(before: Tries | None, now: float) -> Tries:
    """A repair that is made now.

    Somebody else's controller may set its own values after each repair. Both would write without
    end if repairs did not come ever more rarely.
    """
    in_a_row = before is not None and now - before.again_at <= CALM_SECONDS
    times = before.times + 1 if before is not None and in_a_row else 1
    doublings = min(times - AT_ONCE, _MOST_DOUBLINGS)
    delay = 0.0 if doublings < 0 else _FIRST_REPAIR_DELAY_SECONDS * 2.0**doublings
    return Tries(times=times, again_at=now + min(delay, LONGEST_DELAY_SECONDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an apply of ours did, so that the next reconcile tells drift from our own work."""

    uid: str
    rendered: str
    """Digest of what was sent."""
    content: str
    """Digest of what the API server made of it."""
    repair: Tries | None = None
    """The last one, if somebody else had changed the child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """How many Events told of one reason of a condition, and when the last one did."""

    times: int
    at: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered of a BatchedModel."""

    applied: Mapping[Kind, Applied] = field(default_factory=dict)
    in_force: Mapping[str, str] = field(default_factory=dict)
    """By uid of a pod: the hash of the settings that its sidecar named last."""
    inquiries: Mapping[tuple[str, str], Tries] = field(default_factory=dict)
    """By uid of a pod and hash of settings, for pods that do not use these settings yet."""
    startups: Mapping[str, str] = field(default_factory=dict)
    """By uid of a pod: what its sidecar said last of the model's start."""
    adapters: Mapping[str, Sequence[AdapterState]] = field(default_factory=dict)
    """By uid of a pod: what its sidecar said last of its adapters."""
    link_versions: Mapping[str, int] = field(default_factory=dict)
    """By uid of a pod: the version of the link that its sidecar and model server speak; 0 for none.
    """
    silences: Mapping[str, Tries] = field(default_factory=dict)
    """By uid of a pod, for those that did not answer when they were asked last."""
    lacking: Mapping[str, float] = field(default_factory=dict)
    """By uid of a pod that lacks an accelerator: when that was first seen, monotonic seconds."""
    announced: Mapping[tuple[str, str], Announced] = field(default_factory=dict)
    """By type of condition and reason, for the last minutes: the Events that were written."""
    altered_at: float | None = None
    """When the spec was first seen to be another than was applied, though of its generation."""
