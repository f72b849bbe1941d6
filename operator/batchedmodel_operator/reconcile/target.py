"""Which pod template a BatchedModel is to have, and which later one waits. Pure.

An edit of the manifest has its template at once. Other images of the operator, and an edit of the
class, concern many models: each waits for its turn, so that a bad one is seen on the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.manifest.workload import UpgradeMode
from batchedmodel_operator import render
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.reconcile.state import SPEC_FIELD, Observed, Revision, condition
from batchedmodel_operator.rollout.rollout import Cause, Record


class Hold(StrEnum):
    """What a later template waits for."""

    PINNED = "Pinned"
    """An edit, or that `sidecar.upgrade` says otherwise."""
    TURN = "Turn"
    """That fewer models roll, and none that did is degraded."""
    HEALTH = "Health"
    """That the pods of the present one serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A later template."""

    cause: Cause
    hold: Hold
    images: tuple[str, ...]
    """The operator's, where these are what is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The template that is to be applied."""

    name: str
    template: Body
    cause: Cause = Cause.EDIT
    """Why it is another than the last one, if it is."""
    pending: Pending | None = None


def choose(observed: Observed, spec: Spec, images: render.Images, *, may_begin: bool) -> Target:
    """`may_begin`: whether it is this model's turn to follow what others follow too."""
    model, record = observed.model, Record.of(observed.model.status)
    name = render.revision_name(model, spec)
    fresh = render.pod_template(model, spec, images, render.pinned_batching(spec))
    kept = {one.name: one for one in observed.revisions}
    same = [
        one for one in observed.revisions if one.name == name or one.name.startswith(f"{name}-")
    ]
    if same:
        present = _last(same, record)
        if render.images_of(present.template) == render.images_of(fresh):
            return Target(name=present.name, template=present.template)
        cause = Cause.UPGRADE
    elif record.target in kept and _is_edit_of_class(observed):
        present, cause = kept[record.target], Cause.CLASS
    else:
        return Target(name=name, template=fresh)
    hold = _hold(observed, record, cause, may_begin=may_begin)
    if cause is Cause.UPGRADE and images.upgrade_of(spec) is UpgradeMode.PINNED:
        hold = Hold.PINNED
    if hold is None:
        if cause is Cause.CLASS:
            return Target(name=name, template=fresh, cause=cause)
        wanted = render.images_of(fresh)
        for one in reversed(same):
            if render.images_of(one.template) == wanted:
                return Target(name=one.name, template=one.template, cause=cause)
        return Target(name=render.upgraded_name(name, fresh), template=fresh, cause=cause)
    new = set(render.images_of(fresh).values()) - set(render.images_of(present.template).values())
    pending = Pending(cause=cause, hold=hold, images=tuple(sorted(new)))
    return Target(name=present.name, template=present.template, pending=pending)


def _last(same: Sequence[Revision], record: Record) -> Revision:
    """The one in use among those of one state of the manifest, or else the latest."""
    return next((one for one in same if one.name == record.target), same[-1])


def _is_edit_of_class(observed: Observed) -> bool:
    """Whether the manifest itself is the one that was applied last."""
    model = observed.model
    same = model.status.get("observedGeneration") == model.generation
    return bool(model.class_name and same and model.status.get(SPEC_FIELD) == model.spec_digest)


def _hold(observed: Observed, record: Record, cause: Cause, *, may_begin: bool) -> Hold | None:
    status, deployment = observed.model.status, observed.deployment
    empty = deployment is None or deployment.body["spec"].get("replicas", 1) == 0
    serves = record.target == record.good and condition(status, "Ready").get("status") == "True"
    # Something newer may follow what goes badly.
    began = record.cause is not Cause.EDIT and (record.target != record.good or bool(record.fault))
    if empty or serves or began:
        return None if may_begin else Hold.TURN
    # An edit of the class may be what a model needs that does not serve. Images rarely are.
    return None if cause is Cause.CLASS else Hold.HEALTH
