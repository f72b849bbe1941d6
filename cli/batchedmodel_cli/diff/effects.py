"""The effects of an edit, found by comparing the dry run's children before and after it. Pure.

No field of the manifest is known here. A field has the effects that its edit has alone. Where there
are none, it has those that would be missing without it: a target for the queue has an effect only
with the metric that is edited beside it. Edits that the contract allows only together count as one.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchedmodel_cli.diff.dry_run import DryRun, Kind, LiveModel, Outcome
from batchedmodel_cli.diff.fields import Edit, edits, obeys
from batchedmodel_kube.manifest.spec import Spec


class Effect(StrEnum):
    """What an edit does in the cluster; the worst for callers comes first."""

    ROLLS_PODS = "RollsPods"
    MAY_ROLL_PODS = "MayRollPods"
    SCALES_PODS = "ScalesPods"
    EFFECTIVE_AT_ONCE = "EffectiveAtOnce"
    CHANGES_AUTOSCALING = "ChangesAutoscaling"
    CHANGES_SERVICE = "ChangesService"
    CHANGES_DISRUPTION = "ChangesDisruption"
    CHANGES_ROLLOUT = "ChangesRollout"
    NO_EFFECT = "NoEffect"


EFFECT_OF_CHILD: Final = {
    Kind.CONFIG_MAP: Effect.EFFECTIVE_AT_ONCE,
    Kind.SERVICE: Effect.CHANGES_SERVICE,
    Kind.AUTOSCALER: Effect.CHANGES_AUTOSCALING,
    Kind.DISRUPTION_BUDGET: Effect.CHANGES_DISRUPTION,
}
"""For each child but the Deployment, whose parts have different effects."""

_OF_THE_SERVER: Final = ("uid", "resourceVersion", "managedFields")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """One edited field with its effects, at least one."""

    edit: Edit
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A field that nobody edited; its effective value changes with one that was."""

    path: str
    old: object
    new: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A live model before and after a new spec."""

    before: Outcome
    after: Outcome
    edited: tuple[Edited, ...]
    followed: tuple[Followed, ...]

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Of all edits together."""
        return _ordered(effect for one in self.edited for effect in one.effects)


def difference(live: LiveModel, new: Spec) -> Difference:
    """What the new spec would do to the live model."""
    dry_run = DryRun(live)
    before, after = dry_run.before, dry_run.after(new)
    made = edits(live.spec, new)
    whole = effects(before, after)
    shares = _shares(made, dry_run, before, after)
    # An effect that no edit explains comes from several together, and each of them has it.
    joint = whole.difference(*shares)
    return Difference(
        before=before,
        after=after,
        edited=tuple(
            Edited(edit=edit, effects=_ordered(share & whole | joint) or (Effect.NO_EFFECT,))
            for edit, share in zip(made, shares, strict=True)
        ),
        followed=tuple(_followed(before, after, [edit.path for edit in made])),
    )


def effects(before: Outcome, after: Outcome) -> frozenset[Effect]:
    """What happens in the cluster between the two; empty if nothing does."""
    found = {
        EFFECT_OF_CHILD[kind]
        for kind in before.children.keys() | after.children.keys()
        if kind is not Kind.DEPLOYMENT
        and _content(before.children.get(kind)) != _content(after.children.get(kind))
    }
    if before.wishes != after.wishes and Kind.AUTOSCALER in after.children:
        found.add(Effect.CHANGES_AUTOSCALING)
    old, new = (_content(one.children[Kind.DEPLOYMENT])["spec"] for one in (before, after))
    if old.pop("template") != new.pop("template"):
        found.add(Effect.ROLLS_PODS)
    elif before.kept != after.kept:
        found.add(Effect.MAY_ROLL_PODS)
    if old.pop("replicas") != new.pop("replicas"):
        found.add(Effect.SCALES_PODS)
    if old != new:
        found.add(Effect.CHANGES_ROLLOUT)
    return frozenset(found)


def _shares(
    made: Sequence[Edit], dry_run: DryRun, before: Outcome, after: Outcome
) -> list[frozenset[Effect]]:
    """The effects of each edit."""

    def share(parts: Sequence[Edit]) -> frozenset[Effect] | None:
        alone, without = before.spec, after.spec
        for edit in parts:
            alone = edit.made_in(alone, after.spec)
            without = edit.made_in(without, before.spec)
        found = effects(before, dry_run.after(alone)) if obeys(alone) else None
        if not found and obeys(without):
            found = effects(dry_run.after(without), after)
        return found

    found = [share([edit]) for edit in made]
    tied = [edit for edit, its in zip(made, found, strict=True) if its is None]
    of_tied = share(tied) if tied else None
    if of_tied is None:
        of_tied = effects(before, after)
    return [of_tied if its is None else its for its in found]


def _content(body: Mapping[str, Any] | None) -> dict[str, Any]:
    """The object without the fields that the API server adds."""
    content = copy.deepcopy(dict(body or {}))
    for name in _OF_THE_SERVER:
        content.get("metadata", {}).pop(name, None)
    return content


def _ordered(found: Iterable[Effect]) -> tuple[Effect, ...]:
    known = frozenset(found)
    return tuple(effect for effect in Effect if effect in known)


def _followed(before: Outcome, after: Outcome, edited: list[str]) -> Iterator[Followed]:
    new = after.in_force
    for path, old in before.in_force.items():
        ours = any(path == one or path.startswith(f"{one}.") for one in edited)
        if not ours and path in new and new[path] != old:
            yield Followed(path=path, old=old, new=new[path])
