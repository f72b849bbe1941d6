"""How the pods of a revision are replaced, and when the last good one comes back. Pure.

`plan` calls it in every reconcile with what `failure_signs` read. What must outlast a reconcile
stands in the object's status (`Record`). A latch holds until the manifest asks for other pods, so
that the decision never goes back and forth. Other edits (batch settings, the number of pods) change
nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from batchedmodel_kube.manifest.workload import Rollout, RolloutStrategy
from batchedmodel_operator.interfaces import Body

_NONE: Final = (0, "0%")


class Mode(StrEnum):
    """Which pods go first."""

    SURGE = RolloutStrategy.SURGE.value
    IN_PLACE = RolloutStrategy.IN_PLACE.value


class Cause(StrEnum):
    """What asked for a target."""

    EDIT = "Edit"
    UPGRADE = "Upgrade"
    CLASS = "Class"


class Why(StrEnum):
    """Why a rollout goes as it does."""

    AS_SPECIFIED = "AsSpecified"
    NO_ACCELERATOR = "NoAccelerator"
    SPARE_EXPECTED = "SpareExpected"
    ACCELERATOR_SCARCE = "AcceleratorScarce"
    SURGE_FOUND_NONE = "SurgeFoundNoAccelerator"


SENTENCES: Final[Mapping[Why, str]] = {
    Why.AS_SPECIFIED: "as spec.rollout says",
    Why.NO_ACCELERATOR: "new pods come beside the old ones, for they need no accelerator",
    Why.SPARE_EXPECTED: "new pods come beside the old ones, for no pod lacks an accelerator",
    Why.ACCELERATOR_SCARCE: "old pods go first, for a pod lacked an accelerator at its beginning",
    Why.SURGE_FOUND_NONE: "old pods go first now, for a new pod had lacked an accelerator for as "
    "long as spec.rollout.switchAfterSeconds says",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why the containers of a revision started and failed."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was decided, as `status.rollout` keeps it."""

    target: str = ""
    """The revision that the manifest asks for."""
    good: str = ""
    """The last one of which all pods were available."""
    mode: Mode = Mode.SURGE
    why: Why | None = None
    """None: nothing has been decided yet."""
    latched: bool = False
    """Surge found no accelerator: in place until there is another target."""
    fault: Fault | None = None
    """Why the target failed; while there is one, the good revision is applied."""
    cause: Cause = Cause.EDIT
    said: str = ""
    """Digest of what the manifest itself says of pods, where it names a class."""

    @classmethod
    def of(cls, status: Body) -> "Record":
        """As it stands in a status; what no operator wrote there counts as nothing."""
        kept = status.get("rollout") or {}
        target, fault = kept.get("targetRevision", ""), None
        if target and kept.get("failedRevision") == target:
            fault = Fault(
                reason=kept.get("failedReason") or "Unknown",
                message=kept.get("failedMessage", ""),
            )
        mode, why, cause = (kept.get(name) for name in ("strategy", "strategyReason", "cause"))
        return cls(
            target=target,
            good=kept.get("goodRevision", ""),
            mode=Mode(mode) if mode in list(Mode) else Mode.SURGE,
            why=Why(why) if mode in list(Mode) and why in list(Why) else None,
            latched=kept.get("strategyLatched") == Mode.IN_PLACE,
            fault=fault,
            cause=Cause(cause) if cause in list(Cause) else Cause.EDIT,
            said=kept.get("manifest", ""),
        )

    def to_status(self) -> dict[str, str]:
        """The form in which it is kept."""
        fault = self.fault
        fields = {
            "targetRevision": self.target,
            "goodRevision": self.good,
            "strategy": "" if self.why is None else self.mode,
            "strategyReason": self.why or "",
            "strategyLatched": Mode.IN_PLACE if self.latched else "",
            "failedRevision": "" if fault is None else self.target,
            "failedReason": "" if fault is None else fault.reason,
            "failedMessage": "" if fault is None else fault.message,
            "cause": "" if self.cause is Cause.EDIT else self.cause,
            "manifest": self.said,
        }
        return {name: str(value) for name, value in fields.items() if value}

    @property
    def latches(self) -> tuple[str, bool, bool, Cause]:
        """What must be written down before it is acted on."""
        return self.target, self.latched, self.fault is not None, self.cause

    @property
    def sentence(self) -> str:
        """Why the rollout goes as it does, for people."""
        return "" if self.why is None else SENTENCES[self.why]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What one reconcile found of a rollout."""

    target: str
    """Name of the revision that the manifest asks for."""
    cause: Cause
    """Why it is another than the last one, if it is."""
    said: str
    """As the record has it."""
    is_authors: bool
    """Whether somebody has edited the manifest since all that it asks for served."""
    asked: Rollout
    accelerator: bool
    """Whether each pod needs one."""
    rolling: bool
    """Pods of another revision than the Deployment's are there."""
    scarce: bool
    """A pod, of whatever revision, lacks an accelerator."""
    waited: float | None
    """Seconds for which a pod of the Deployment's revision has lacked one; None: none does."""
    fault: Fault | None
    """Of the target's pods. A pod that waits for a node, an image or files has none."""
    serving: bool
    """A pod of the target is ready."""
    overdue: bool
    """The target's pods took longer than they may."""
    complete: bool
    """All pods are of the target and available."""
    kept: frozenset[str]
    """Other revisions that could be applied again, with pods unlike the target's."""


def decide(signs: Signs, before: Record) -> Record:
    """What holds from now on; at most one latch falls at a reconcile."""
    earlier = before
    if before.target != signs.target:
        earlier = replace(before, target=signs.target, latched=False, fault=None, cause=signs.cause)
    if signs.is_authors:
        earlier = replace(earlier, cause=Cause.EDIT)
    good = signs.target if signs.complete else earlier.good
    fault = _fault(signs, earlier.fault, good)
    mode, why = _mode(signs, earlier)
    held = earlier.latched and _may_change(signs)
    waited = signs.waited is not None and signs.waited >= signs.asked.switch_after_seconds
    latched = held or (fault == earlier.fault and waited and _can_switch(signs, mode))
    if latched:
        mode, why = Mode.IN_PLACE, Why.SURGE_FOUND_NONE
    return Record(
        target=signs.target,
        good=good,
        mode=mode,
        why=why,
        latched=latched,
        fault=fault,
        cause=earlier.cause,
        said=signs.said,
    )


def seconds_left(signs: Signs, record: Record) -> float:
    """Until a pod will have lacked an accelerator for too long; endless where none may."""
    if signs.waited is None or not _can_switch(signs, record.mode):
        return math.inf
    # For so long a new pod may lack one: a new node may have to come first.
    return max(0.0, signs.asked.switch_after_seconds - signs.waited)


def _fault(signs: Signs, known: Fault | None, good: str) -> Fault | None:
    # Without a good revision there is nothing to go back to.
    if not signs.asked.auto_rollback or good not in signs.kept:
        return None
    if known is not None:
        return known
    return signs.fault if signs.overdue or not signs.serving else None


def _mode(signs: Signs, earlier: Record) -> tuple[Mode, Why]:
    asked = signs.asked
    if asked.strategy is not RolloutStrategy.AUTO:
        return Mode(asked.strategy.value), Why.AS_SPECIFIED
    if asked.max_surge is not None or asked.max_unavailable in _NONE:
        return Mode.IN_PLACE if asked.max_surge in _NONE else Mode.SURGE, Why.AS_SPECIFIED
    if not signs.accelerator:
        return Mode.SURGE, Why.NO_ACCELERATOR
    if signs.rolling and earlier.why is not None:
        # An edit during a rollout changes its target, but not how many pods may be missing.
        return earlier.mode, earlier.why
    if signs.scarce:
        return Mode.IN_PLACE, Why.ACCELERATOR_SCARCE
    return Mode.SURGE, Why.SPARE_EXPECTED


def _may_change(signs: Signs) -> bool:
    """Whether the manifest lets a rollout go on with fewer pods."""
    asked = signs.asked
    return asked.strategy is RolloutStrategy.AUTO and asked.max_unavailable not in _NONE


def _can_switch(signs: Signs, mode: Mode) -> bool:
    return mode is Mode.SURGE and signs.rolling and signs.accelerator and _may_change(signs)
