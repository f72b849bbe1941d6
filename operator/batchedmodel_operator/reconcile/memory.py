"""What is remembered of a BatchedModel between two looks, as records.

`plan`, `observe` and `apply` make a new one of each look. Losing it costs applies that change
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.repairs import Repair


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an apply of ours did, so that the next look tells drift from our own work."""

    uid: str
    rendered: str
    """Digest of what was sent."""
    content: str
    """Digest of what the API server made of it."""
    repair: Repair | None = None
    """The last one, if somebody else had changed the child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """How often a pod was asked whether it uses the settings, and when to ask again."""

    settings: str
    times: int
    again_at: float
    """Monotonic seconds."""

    def due(self, now: float) -> bool:
        return now >= self.again_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How often in a row a pod's sidecar did not answer in time, and when to ask it again."""

    times: int
    again_at: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """How many Events told of one reason of a condition, and when the last one did."""

    times: int
    at: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered of a BatchedModel between two looks. Losing it costs no-op applies."""

    applied: Mapping[Kind, Applied] = field(default_factory=dict)
    in_force: Mapping[str, str] = field(default_factory=dict)
    """By uid of a pod: the hash of the settings that its sidecar named last."""
    inquiries: Mapping[str, Inquiry] = field(default_factory=dict)
    """By uid of a pod, for those that do not use the settings yet."""
    startups: Mapping[str, str] = field(default_factory=dict)
    """By uid of a pod: what its sidecar said last of the model's start."""
    silences: Mapping[str, Silence] = field(default_factory=dict)
    """By uid of a pod, for those that did not answer when they were asked last."""
    replica_sets: Mapping[str, str | None] = field(default_factory=dict)
    """By uid, those of pods that are there: what is known of each, as `ownership` has found it."""
    lacking: Mapping[str, float] = field(default_factory=dict)
    """By uid of a pod that lacks an accelerator: when that was first seen, monotonic seconds."""
    announced: Mapping[tuple[str, str], Announced] = field(default_factory=dict)
    """By type of condition and reason, for the last minutes; what `events` has told."""
    altered_at: float | None = None
    """When the spec was first seen to be another than was applied, though of its generation."""

    def inquiry(self, uid: str, settings: str) -> Inquiry | None:
        """The inquiries about these settings; those about earlier ones no longer count."""
        found = self.inquiries.get(uid)
        return found if found is not None and found.settings == settings else None
