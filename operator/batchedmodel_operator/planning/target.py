"""Which pod template a BatchedModel is to have, and which later one waits. Pure.

An edit of the manifest has its template at once. Other images of the operator, and an edit of the
class, concern many models: each waits for its turn, so that a bad one is seen on the first.

A model server whose image the manifest names may be of an earlier release. While that image stays
the sidecar's stays too, unless the running one tells that both speak a version of the link that the
operator's sidecar speaks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from batchedmodel_contract.link.hello import MAX_VERSION, MIN_VERSION
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import UpgradeMode
from batchedmodel_kube.names import BATCHER_CONTAINER, MODEL_CONTAINER
from batchedmodel_operator import render
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.observed.state import Observed, Revision, condition, revision_of
from batchedmodel_operator.rollout import Cause, Record


class Hold(StrEnum):
    """What a later template waits for."""

    PINNED = "Pinned"
    """An edit, or that `sidecar.upgrade` says otherwise."""
    TURN = "Turn"
    """That fewer models roll, and none that did is degraded."""
    HEALTH = "Health"
    """That the pods of the present one serve."""
    MODEL_IMAGE = "ModelImage"
    """A model server of the manifest's image that is known to speak with the other sidecar."""


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
    kept = _kept_sidecar(observed, spec)
    if kept is None or kept == images.sidecar:
        return _chosen(observed, spec, images, kept, may_begin=may_begin)
    kept_images = replace(images, sidecar=kept)
    target = _chosen(observed, spec, kept_images, kept, may_begin=may_begin)
    waits = Pending(cause=Cause.UPGRADE, hold=Hold.MODEL_IMAGE, images=(images.sidecar,))
    return target if target.pending is not None else replace(target, pending=waits)


def serves_by_own_image(spec: Spec) -> bool:
    """Whether the manifest names the image of a model server of ours, and not the sidecar's."""
    is_ours, own = spec.model.handler is not None, spec.model.image is not None
    return is_ours and own and spec.sidecar.image is None


def _kept_sidecar(observed: Observed, spec: Spec) -> str | None:
    """The running sidecar's image, where the model server may be too old for another."""
    record = Record.of(observed.model.status)
    in_use = next((one for one in observed.revisions if one.name == record.target), None)
    if in_use is None or not serves_by_own_image(spec):
        return None
    running, revision = render.images_of(in_use.template), revision_of(in_use.template)
    pods = (pod.uid for pod in observed.pods if pod.revision == revision)
    versions = (observed.memory.link_versions.get(pod, 0) for pod in pods)
    if any(MIN_VERSION <= version <= MAX_VERSION for version in versions):
        return None
    return running[BATCHER_CONTAINER] if running[MODEL_CONTAINER] == spec.model.image else None


def _chosen(
    observed: Observed, spec: Spec, images: render.Images, kept: str | None, *, may_begin: bool
) -> Target:
    """`kept`: the one image of a sidecar that the running model server may have."""
    model, record = observed.model, Record.of(observed.model.status)
    name, said = render.revision_name(model, spec), render.said_of_pods(model)
    fresh = render.pod_template(model, spec, images, render.pinned_batching(spec))
    wanted = render.images_of(fresh)
    of_state = [
        one for one in observed.revisions if one.name == name or one.name.startswith(f"{name}-")
    ]
    # An earlier template of this state may have another sidecar.
    same = [
        one
        for one in of_state
        if kept is None or render.images_of(one.template)[BATCHER_CONTAINER] == kept
    ]
    alike = [one for one in same if render.images_of(one.template) == wanted]
    in_use = next((one for one in observed.revisions if one.name == record.target), None)
    pinned = images.upgrade_of(spec) is UpgradeMode.PINNED
    if in_use is not None and in_use not in same and said and said == record.said:
        present, cause = in_use, Cause.CLASS
    elif same:
        present, cause = _present(same, alike, record, pinned=pinned), Cause.UPGRADE
        if present in alike:
            return Target(name=present.name, template=present.template, said=said)
    else:
        name = render.upgraded_name(name, fresh) if of_state else name
        return Target(name=name, template=fresh, said=said)
    in_turn = _goes_in_turn(observed, record)
    hold = None
    if cause is Cause.UPGRADE and pinned:
        hold = Hold.PINNED
    elif in_turn:
        hold = None if may_begin else Hold.TURN
    elif cause is Cause.UPGRADE:
        hold = Hold.HEALTH
    if hold is not None:
        new = set(wanted.values()) - set(render.images_of(present.template).values())
        pending = Pending(cause=cause, hold=hold, images=tuple(sorted(new)))
        return Target(name=present.name, template=present.template, said=said, pending=pending)
    if not in_turn:
        # An edit of the class may be what a model needs that does not serve. It holds up nobody.
        cause = Cause.EDIT
    if alike:
        return Target(name=alike[-1].name, template=alike[-1].template, said=said, cause=cause)
    name = render.upgraded_name(name, fresh) if of_state else name
    return Target(name=name, template=fresh, said=said, cause=cause)


def _present(
    same: Sequence[Revision], alike: Sequence[Revision], record: Record, *, pinned: bool
) -> Revision:
    """Which of the templates of one state of the manifest is in use, or to be used again."""
    named = {one.name: one for one in same}
    if pinned and record.fault is not None and record.cause is Cause.UPGRADE:
        # What was taken back is not wanted any more.
        return named.get(record.good) or named.get(record.target) or same[-1]
    return named.get(record.target) or (alike or same)[-1]


def serves(status: Body) -> bool:
    """Whether all that is asked for serves, as a BatchedModel's status has it."""
    record = Record.of(status)
    is_ready = condition(status, "Ready").get("status") == "True"
    return record.target == record.good and is_ready and not _is_degraded(status)


def _is_degraded(status: Body) -> bool:
    return condition(status, "Degraded").get("status") == "True"


def _goes_in_turn(observed: Observed, record: Record) -> bool:
    """Whether it waits with others: it serves, or has no pods, or began in an earlier turn."""
    status, deployment = observed.model.status, observed.deployment
    empty = deployment is None or deployment.body["spec"].get("replicas", 1) == 0
    failed = record.target != record.good or record.fault is not None or _is_degraded(status)
    # Something newer may follow what goes badly.
    return empty or serves(status) or (record.cause is not Cause.EDIT and failed)
