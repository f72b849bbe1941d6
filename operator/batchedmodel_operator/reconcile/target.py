"""Which pod template a BatchedModel is to have, and which later one waits. Pure.

An edit of the manifest has its template at once. Other images of the operator, and an edit of the
class, concern many models: each waits for its turn, so that a bad one is seen on the first.
"""

from dataclasses import dataclass
from enum import StrEnum

from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.manifest.workload import UpgradeMode
from batchedmodel_operator import render
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.reconcile.state import Observed, condition
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
    said: str
    """Digest of what the manifest itself says of pods, where it names a class."""
    cause: Cause = Cause.EDIT
    """Why it is another than the last one, if it is."""
    pending: Pending | None = None


def choose(observed: Observed, spec: Spec, images: render.Images, *, may_begin: bool) -> Target:
    """`may_begin`: whether it is this model's turn to follow what others follow too."""
    model, record = observed.model, Record.of(observed.model.status)
    name, said = render.revision_name(model, spec), render.said_of_pods(model)
    fresh = render.pod_template(model, spec, images, render.pinned_batching(spec))
    wanted = render.images_of(fresh)
    kept = {one.name: one for one in observed.revisions}
    same = [
        one for one in observed.revisions if one.name == name or one.name.startswith(f"{name}-")
    ]
    latest = next((one for one in reversed(same) if render.images_of(one.template) == wanted), None)
    in_use = kept.get(record.target)
    by_class = bool(said) and said == record.said and in_use is not None and in_use not in same
    pinned = images.upgrade_of(spec) is UpgradeMode.PINNED
    if by_class and in_use is not None:
        present, cause = in_use, Cause.CLASS
    elif same:
        present = in_use if in_use in same and in_use is not None else latest or same[-1]
        good = kept.get(record.good)
        taken_back = record.fault is not None and record.cause is Cause.UPGRADE
        if pinned and taken_back and good is not None and good in same:
            # What was taken back is not wanted any more.
            present = good
        if render.images_of(present.template) == wanted:
            return Target(name=present.name, template=present.template, said=said)
        cause = Cause.UPGRADE
    else:
        return Target(name=name, template=fresh, said=said)
    hold = _hold(observed, record, cause, may_begin=may_begin)
    if cause is Cause.UPGRADE and pinned:
        hold = Hold.PINNED
    if hold is not None:
        new = set(wanted.values()) - set(render.images_of(present.template).values())
        pending = Pending(cause=cause, hold=hold, images=tuple(sorted(new)))
        return Target(name=present.name, template=present.template, said=said, pending=pending)
    if cause is Cause.CLASS and not _has_turn(observed, record):
        # It took no turn, so it holds up nobody.
        cause = Cause.EDIT
    if latest is not None:
        return Target(name=latest.name, template=latest.template, said=said, cause=cause)
    name = render.upgraded_name(name, fresh) if same else name
    return Target(name=name, template=fresh, said=said, cause=cause)


def serves(status: Body) -> bool:
    """Whether all that is asked for serves, as a BatchedModel's status has it."""
    record = Record.of(status)
    is_ready = condition(status, "Ready").get("status") == "True"
    return record.target == record.good and is_ready and not _is_degraded(status)


def _is_degraded(status: Body) -> bool:
    return condition(status, "Degraded").get("status") == "True"


def _has_turn(observed: Observed, record: Record) -> bool:
    """Whether it goes with the others: it serves, or has no pods, or began in an earlier turn."""
    status, deployment = observed.model.status, observed.deployment
    empty = deployment is None or deployment.body["spec"].get("replicas", 1) == 0
    failed = record.target != record.good or record.fault is not None or _is_degraded(status)
    # Something newer may follow what goes badly.
    return empty or serves(status) or (record.cause is not Cause.EDIT and failed)


def _hold(observed: Observed, record: Record, cause: Cause, *, may_begin: bool) -> Hold | None:
    if _has_turn(observed, record):
        return None if may_begin else Hold.TURN
    # An edit of the class may be what a model needs that does not serve. Images rarely are.
    return None if cause is Cause.CLASS else Hold.HEALTH
