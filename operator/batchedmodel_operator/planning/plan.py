"""Decides what has to be done to the cluster so that it is what a BatchedModel asks for. Pure.

Level-triggered: whatever happened before, the answer follows from what is there now. Where nothing
differs nothing is planned, so that a second reconcile, a restart or a second operator writes
nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from batchedmodel_kube.errors import ClusterError
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import ScalingVia
from batchedmodel_operator import render, rollout
from batchedmodel_operator.interfaces import UNREAD, Body
from batchedmodel_operator.kinds import CHILDREN, FIELD_MANAGER, SEED_MANAGER, Kind
from batchedmodel_operator.observed import effective
from batchedmodel_operator.observed.memory import (
    AT_ONCE,
    Tries,
    asked_again,
    last_question,
    repaired,
)
from batchedmodel_operator.observed.state import (
    Child,
    Observed,
    Pod,
    content,
    digest,
    holds_replicas,
    left_behind,
    owned,
)
from batchedmodel_operator.planning.failure_signs import signs
from batchedmodel_operator.planning.target import Pending, choose
from batchedmodel_operator.rollout import Mode, Record

RESYNC_SECONDS: Final = 600.0
"""A watch that fell silent costs at most this much delay."""
_TEMPLATES_KEPT: Final = 3  # beside the one in use and the last good one
_COLLECTION_SECONDS: Final = 2.0
_LONGEST_COLLECTION_SECONDS: Final = 60.0  # its end makes an event
_CONFLICT_SECONDS: Final = 60.0  # a stranger's object is not watched, so its end makes no event
_MOST_DIGITS: Final = 9  # of a number in an annotation that others may write
_ADAPTERS_SECONDS: Final = 60.0  # nor that an adapter came into a folder, or failed later
_LOADING_SECONDS: Final = 5.0  # that a model failed to load makes no event


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A child that is no longer wanted."""

    kind: Kind
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A manifest that differs from what is there."""

    kind: Kind
    manifest: Body
    manager: str = FIELD_MANAGER
    uid: str = ""
    """Of the object that was judged ours; empty when there is none yet."""
    version: str = ""
    """Of the object as it was seen, where a later change must not be overwritten."""
    after: Kind | None = None
    """A child that the API server must not have refused just before."""
    repair: Tries | None = None
    """To be remembered, where it undoes what somebody else changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """A pod whose kubelet is to look at the batch settings now instead of in a minute."""

    pod: str
    uid: str
    annotation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A child that cannot be applied, because its name is taken."""

    kind: Kind
    name: str
    by_stranger: bool
    """Otherwise by an object on its way out, which takes only patience."""
    owner: str = ""
    """Whose it is, in words, as far as the object says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A child that somebody else changes again after each repair."""

    kind: Kind
    name: str
    by: str
    """Who did so last, as the object says; empty where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A step of the plan that did not succeed."""

    kind: Kind
    name: str
    error: ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, in this order, and when to reconcile again if nothing happens until then."""

    deletions: tuple[Deletion, ...] = ()
    applies: tuple[Apply, ...] = ()
    refreshes: tuple[Refresh, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    creates: tuple[Kind, ...] = ()
    """Children whose names must be free before: what has no label of ours is not in the cache."""
    contests: tuple[Contest, ...] = ()
    model_image: str = ""
    """Of the model's container in the pod template that is wanted."""
    of_chart: effective.OfChart = field(default_factory=dict)
    """Values in force of what the manifest may leave to the chart."""
    rollout: Record = field(default_factory=Record)
    """How pods are replaced, and whether the last good ones have come back."""
    pending: Pending | None = None
    """A later pod template that waits."""
    inquiries: Mapping[tuple[str, str], Tries] = field(default_factory=dict)
    """To be remembered: as `Memory` has them."""
    unconfirmed: tuple[str, ...] = ()
    """Running pods that are not known to use the batch settings."""
    unfinished: bool = False
    """More can be planned from what these steps make."""
    altered: bool = False
    """The manifest reads otherwise than when it was applied, though nobody has edited it."""
    edits_wait: float = 0.0
    """For up to how many seconds the next edits wait; 0 where they come no faster than is quick."""
    come_back_after: float = RESYNC_SECONDS
    """Seconds."""


def plan(
    observed: Observed,
    images: render.Images,
    now: float,
    at: datetime,
    *,
    may_begin: bool = True,
) -> Plan:
    """The steps from what is there to what is wanted.

    `now` in monotonic seconds, by which our own memory counts; `at` by the calendar, by which the
    cluster does. `may_begin`: whether it is this model's turn to follow what concerns many.
    """
    model, spec = observed.model, observed.model.spec
    if spec is None:
        # What the contract refuses cannot be rendered; the last good children stay.
        return Plan(rollout=Record.of(model.status))
    if model.altered:
        # Nobody has asked for other children, and those that were cannot be rendered any more.
        return Plan(rollout=Record.of(model.status), altered=True)
    if observed.blind:
        return _beside_pods(observed, spec, now)
    kept = {revision.name: revision.template for revision in observed.revisions}
    # A new template is made only where none was kept for this state of the manifest.
    target = choose(observed, spec, images, may_begin=may_begin)
    seen = signs(observed, spec, target, now, at)
    decided = rollout.decide(seen, Record.of(model.status))
    template = target.template if decided.fault is None else kept[decided.good]
    wanted = _wanted(observed, spec, template, decided.mode, images.via)
    obstacles = tuple(_obstacles(observed, spec, wanted))
    blocked = _blocked(observed, wanted, obstacles)
    applies = _steps(observed, spec, wanted, blocked, now)
    if target.name not in kept and Kind.DEPLOYMENT not in blocked:
        number = 1 + max((revision.number for revision in observed.revisions), default=0)
        keeping = render.revision_child(model, target.name, number, target.template)
        # A template that the API server takes no Deployment of must not be kept.
        applies.append(
            Apply(kind=Kind.CONTROLLER_REVISION, manifest=keeping, after=Kind.DEPLOYMENT)
        )
    repairs = _repairs(observed, applies)
    settings = batch_settings(spec).digest()
    unconfirmed = [
        pod
        for pod in observed.pods
        if pod.sidecar_started
        and not pod.deleting
        and observed.memory.in_force.get(pod.uid) != settings
    ]
    known, inquiries = observed.memory.inquiries, {}
    refreshes: list[Refresh] = []
    for pod in unconfirmed:
        asked = pod.uid, settings
        before = last_question(known, *asked, now)
        if before is not None and before.waits(now):
            inquiries[asked] = before
        else:
            inquiries[asked] = asked_again(before, now)
            refreshes += _refresh(observed, pod, settings)
    others = [one for one in observed.revisions if one.name not in (target.name, decided.good)]
    outdated = [
        Deletion(kind=Kind.CONTROLLER_REVISION, name=one.name, uid=one.uid)
        for one in others[:-_TEMPLATES_KEPT]
    ]
    return Plan(
        deletions=(*_deletions(observed, wanted), *outdated),
        applies=tuple(applies),
        refreshes=tuple(refreshes),
        model_image=template["spec"]["containers"][0]["image"],
        of_chart=images.in_force(spec),
        rollout=decided,
        pending=target.pending,
        inquiries=inquiries,
        obstacles=obstacles,
        creates=_creates(observed, spec, wanted, applies),
        contests=tuple(_contests(observed, repairs, now)),
        unconfirmed=tuple(pod.name for pod in unconfirmed),
        unfinished=spec.autoscaling is not None and Kind.AUTOSCALER not in wanted and not obstacles,
        come_back_after=min(
            RESYNC_SECONDS,
            _LOADING_SECONDS if observed.loading else math.inf,
            _adapters_seconds(observed, spec),
            rollout.seconds_left(seen, decided),
            *(
                _CONFLICT_SECONDS
                if one.by_stranger
                else _collection_seconds(observed.children[one.kind], at)
                for one in obstacles
            ),
            *(repair.again_at - now for repair in repairs.values() if repair.waits(now)),
            *(inquiry.again_at - now for inquiry in inquiries.values()),
        ),
    )


def _beside_pods(observed: Observed, spec: Spec, now: float) -> Plan:
    """What does not depend on pods, where it is not known what there is of them."""
    wanted = _independent(observed, spec)
    obstacles = tuple(_obstacles(observed, spec, wanted))
    blocked = _blocked(observed, wanted, obstacles)
    applies = _steps(observed, spec, wanted, blocked, now)
    return Plan(
        applies=tuple(applies),
        obstacles=obstacles,
        creates=_creates(observed, spec, wanted, applies),
        rollout=Record.of(observed.model.status),
    )


def _blocked(
    observed: Observed, wanted: Mapping[Kind, Body], obstacles: Sequence[Obstacle]
) -> set[Kind]:
    """Children that cannot be applied now."""
    blocked = {obstacle.kind for obstacle in obstacles} | set(observed.unseen)
    if any(obstacle.by_stranger for obstacle in obstacles):
        # Half a model would serve nobody, and hold devices.
        blocked.update(kind for kind in wanted if kind not in observed.children)
    return blocked


def _steps(
    observed: Observed, spec: Spec, wanted: Mapping[Kind, Body], blocked: Set[Kind], now: float
) -> list[Apply]:
    return [
        step
        for kind, manifest in wanted.items()
        if kind not in blocked
        for step in _applies(observed, spec, kind, manifest, now)
    ]


def _creates(
    observed: Observed, spec: Spec, wanted: Mapping[Kind, Body], applies: Sequence[Apply]
) -> tuple[Kind, ...]:
    """Whose names must be free before these steps are taken; nothing where they make no child."""
    there = observed.children.keys() | observed.unseen.keys()
    if all(step.kind in there for step in applies if step.kind in CHILDREN):
        return ()
    kinds = {**wanted, **({} if spec.autoscaling is None else {Kind.AUTOSCALER: {}})}
    return tuple(kind for kind in kinds if kind not in there)


def _adapters_seconds(observed: Observed, spec: Spec) -> float:
    """How soon to ask for adapters again: what becomes of them makes no event."""
    if spec.adapters is None or not observed.newest:
        return math.inf
    told = observed.memory.adapters
    wanted = {item.name for item in spec.adapters.items}
    settled = all(
        pod.uid in told and wanted <= {one.name for one in told[pod.uid] if one.phase.is_settled}
        for pod in observed.newest
    )
    return _ADAPTERS_SECONDS if settled else _LOADING_SECONDS


def _wanted(
    observed: Observed, spec: Spec, template: Body, mode: Mode, via: ScalingVia
) -> Mapping[Kind, Body]:
    model, live = observed.model, observed.deployment
    there = live is not None and not live.deleting
    free = spec.autoscaling is not None and there and not spec.suspend
    wanted: dict[Kind, Body] = {
        **_independent(observed, spec),
        Kind.DEPLOYMENT: render.deployment(
            model,
            spec,
            template,
            mode=mode,
            # A Deployment without a number would be created with one pod, whatever is asked for.
            replicas=None if free else effective.pods(spec),
        ),
    }
    if spec.autoscaling is not None and there:
        wanted[Kind.AUTOSCALER] = render.autoscaler(model, spec, spec.autoscaling, via)
    return {kind: wanted[kind] for kind in CHILDREN if kind in wanted}


def _independent(observed: Observed, spec: Spec) -> Mapping[Kind, Body]:
    """The children that are the same whatever there is."""
    model = observed.model
    wanted = {
        Kind.CONFIG_MAP: render.config_map(model, spec),
        Kind.SERVICE: render.service(model, spec),
    }
    if effective.needs_disruption_budget(spec):
        wanted[Kind.DISRUPTION_BUDGET] = render.disruption_budget(model, spec)
    return wanted


def _obstacles(observed: Observed, spec: Spec, wanted: Mapping[Kind, Body]) -> Iterator[Obstacle]:
    # An autoscaler is planned for once its Deployment is there; its name must be free before.
    for kind in {**wanted, **({} if spec.autoscaling is None else {Kind.AUTOSCALER: {}})}:
        child = observed.children.get(kind)
        if child is None:
            continue
        ours = owned(child, observed.model)
        if ours and not child.deleting:
            continue
        stranger = not ours and not left_behind(child, observed.model)
        yield Obstacle(kind=kind, name=child.name, by_stranger=stranger, owner=_owner_of(child))


def _collection_seconds(child: Child, at: datetime) -> float:
    """When to look again at a child on its way out: the longer it takes, the later."""
    since = child.body["metadata"].get("deletionTimestamp")
    waited = 0.0 if since is None else (at - datetime.fromisoformat(since)).total_seconds()
    return min(max(_COLLECTION_SECONDS, waited / 4), _LONGEST_COLLECTION_SECONDS)


def _owner_of(child: Child) -> str:
    if UNREAD in child.body:
        return str(child.body[UNREAD])
    owners = sorted(child.owners, key=lambda owner: not owner.get("controller"))
    if owners:
        return f"it belongs to {owners[0].get('kind')} {owners[0].get('name')}"
    # The oldest is mostly that of who made it; of several in one second the one with most fields.
    entries = child.body["metadata"].get("managedFields") or ()
    makers = [one for one in entries if "manager" in one and not one.get("subresource")]
    makers.sort(key=lambda one: (str(one.get("time", "")), -one.get("size", 0)))
    return f"it was made by {makers[0]['manager']}" if makers else ""


def _applies(
    observed: Observed, spec: Spec, kind: Kind, manifest: Body, now: float
) -> Iterator[Apply]:
    live = observed.children.get(kind)
    if live is None:
        yield Apply(kind=kind, manifest=manifest)
        return
    scaled = spec.autoscaling is not None and not spec.suspend
    hand_over = kind is Kind.DEPLOYMENT and scaled and holds_replicas(live.body)
    stopped = kind is Kind.DEPLOYMENT and scaled and live.body["spec"].get("replicas", 1) == 0
    before = observed.memory.applied.get(kind)
    waits = before is not None and before.repair is not None and before.repair.waits(now)
    if hand_over or (stopped and not waits):
        # With nobody else behind them, the replicas that the next apply leaves out would become 1.
        # An autoscaler does nothing at 0, so it begins at its minimum. Whoever scaled it to 0 by
        # hand is undone as with any other field; `suspend` is the way.
        replicas = live.body["spec"].get("replicas") or effective.replicas(spec)
        seed = render.seed(observed.model, live, replicas)
        # What an autoscaler sets meanwhile must not be overwritten. The version of a new Deployment
        # changes at once, by the status that its controller writes.
        new = kind in observed.made and Kind.AUTOSCALER not in observed.children
        version = "" if new else live.body["metadata"]["resourceVersion"]
        yield Apply(kind=kind, manifest=seed, manager=SEED_MANAGER, uid=live.uid, version=version)
    if before is None or before.uid != live.uid or before.rendered != digest(manifest):
        yield Apply(kind=kind, manifest=manifest, uid=live.uid)
    elif before.content != content(live.body, manifest) or (stopped and not hand_over):
        if hand_over or not waits:
            repair = repaired(before.repair, now)
            yield Apply(kind=kind, manifest=manifest, uid=live.uid, repair=repair)
    elif hand_over:
        yield Apply(kind=kind, manifest=manifest, uid=live.uid, repair=before.repair)


def _repairs(observed: Observed, applies: Sequence[Apply]) -> Mapping[Kind, Tries]:
    """The last one of each child, those that are planned included."""
    made = {kind: one.repair for kind, one in observed.memory.applied.items()}
    planned = {step.kind: step.repair for step in applies if step.manager == FIELD_MANAGER}
    return {kind: one for kind, one in {**made, **planned}.items() if one is not None}


def _contests(observed: Observed, repairs: Mapping[Kind, Tries], now: float) -> Iterator[Contest]:
    for kind, repair in repairs.items():
        child = observed.children.get(kind)
        if child is not None and repair.times > AT_ONCE and repair.waits(now):
            yield Contest(kind=kind, name=child.name, by=_last_other(child))


def _last_other(child: Child) -> str:
    entries = [
        entry
        for entry in child.body["metadata"].get("managedFields") or ()
        if entry.get("manager") not in (FIELD_MANAGER, SEED_MANAGER)
        and not entry.get("subresource")
    ]
    by_time = sorted(entries, key=lambda entry: str(entry.get("time", "")))
    return str(by_time[-1].get("manager", "")) if by_time else ""


def _deletions(observed: Observed, wanted: Mapping[Kind, Body]) -> Iterator[Deletion]:
    spec = observed.model.spec
    for kind in CHILDREN:
        child = observed.children.get(kind)
        # While its Deployment is made again, an autoscaler is not planned for but still wanted.
        waits = kind is Kind.AUTOSCALER and spec is not None and spec.autoscaling is not None
        if child is None or kind in wanted or waits:
            continue
        if owned(child, observed.model) and not child.deleting:
            yield Deletion(kind=kind, name=child.name, uid=child.uid)


def _refresh(observed: Observed, pod: Pod, settings: str) -> Iterator[Refresh]:
    """A kubelet left alone takes up to 80 s; one whose pod changes looks at once."""
    hash_, _, count = pod.settings_annotation.partition(".")
    if hash_ != settings:
        yield Refresh(pod=pod.name, uid=pod.uid, annotation=settings)
    elif pod.uid in observed.memory.in_force:
        # It looked too early and found the old ConfigMap. Where nobody answers, nobody says so.
        again = int(count) + 1 if count.isdecimal() and len(count) <= _MOST_DIGITS else 1
        yield Refresh(pod=pod.name, uid=pod.uid, annotation=f"{settings}.{again}")
