"""What one reconcile observed, as records that `plan` and `status` judge. Pure.

`observe` makes them of the API's JSON.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidManifest, Mistake
from batchedmodel_contract.processes.logs import about
from batchedmodel_kube.errors import ClusterError
from batchedmodel_kube.manifest.manifest import read_manifest, read_own_spec
from batchedmodel_kube.manifest.model_class import ModelClass, class_name_of, read_class
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import (
    BATCHER_CONTAINER,
    BATCHING_HASH_ANNOTATION,
    CLASS_KIND,
    GROUP,
    NAME_LABEL,
    REVISION_LABEL,
)
from batchedmodel_operator.interfaces import UNREAD, Body
from batchedmodel_operator.kinds import CHILDREN, FIELD_MANAGER, Kind
from batchedmodel_operator.observed.alteration import class_seen, is_altered
from batchedmodel_operator.observed.effective import beyond_defaults
from batchedmodel_operator.observed.memory import Memory

_LOADING_ASKED: Final = 16
_LARGEST_NUMBER: Final = 2**62
"""Of a revision; one more must still be one that an API server takes."""
_PODS_NEED: Final = frozenset(
    {Kind.DEPLOYMENT, Kind.CONTROLLER_REVISION, Kind.REPLICA_SET, Kind.POD}
)
"""Kinds without which nothing of a model's pods can be decided."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """Names one BatchedModel."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def fields(self, *, pod: str = "") -> dict[str, object]:
        """`extra` of a log's line about it, and about a pod of it."""
        return about(namespace=self.namespace, model=self.name, pod=pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A BatchedModel."""

    key: Key
    uid: str
    generation: int
    spec: Spec | None
    """None when the contract refuses it, which an older custom resource lets pass."""
    mistakes: tuple[str, ...]
    status: Body
    class_name: str = ""
    """Of the BatchedModelClass that it names; empty where it names none."""
    own: Spec | None = None
    """What the manifest says itself, where it names a class and can be read."""
    lacks_class: bool = False
    """Whether that class is not there."""
    unread: str = ""
    """Why the spec could not even be read; empty where it could."""
    spec_digest: str = ""
    """Of what the manifest's spec says beyond the defaults; empty where there is none."""
    class_seen: str = ""
    """Of its class what tells that it was altered."""

    @property
    def altered(self) -> bool:
        """Whether another definition has altered it or its class since it was applied."""
        return is_altered(
            self.status,
            generation=self.generation,
            spec_digest=self.spec_digest,
            class_seen=self.class_seen,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A live object under the name of one of our children, whoever made it."""

    kind: Kind
    name: str
    uid: str
    owners: tuple[Body, ...]
    deleting: bool
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a BatchedModel."""

    name: str
    uid: str
    address: str
    revision: str
    deleting: bool
    ready: bool
    sidecar_started: bool
    """Its process passed the start-up probe, so its admin port should answer."""
    settings_annotation: str
    body: Body

    @property
    def answers(self) -> bool:
        """Whether its sidecar can be expected to answer."""
        return bool(self.address) and self.sidecar_started and not self.deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A pod template that was kept."""

    name: str
    uid: str
    number: int
    """Larger for later ones."""
    template: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One observation of a BatchedModel and what belongs to it."""

    model: Model
    children: Mapping[Kind, Child]
    revisions: tuple[Revision, ...]
    """This BatchedModel's, by number."""
    pods: tuple[Pod, ...]
    memory: Memory
    unseen: Mapping[Kind, ClusterError] = field(default_factory=dict)
    """Kinds of which it is not known what there is."""
    made: Set[Kind] = frozenset()
    """Children that this very reconcile has made: nobody else can have meant to change them yet."""

    @property
    def deployment(self) -> Child | None:
        """Our Deployment; None when there is none or it is somebody else's."""
        child = self.children.get(Kind.DEPLOYMENT)
        return child if child is not None and owned(child, self.model) else None

    @property
    def blind(self) -> bool:
        """Whether it is not known what there is of pods."""
        return not _PODS_NEED.isdisjoint(self.unseen)

    @property
    def revision(self) -> str | None:
        """The Deployment's present revision."""
        return (
            None
            if self.deployment is None
            else revision_of(self.deployment.body["spec"]["template"])
        )

    @property
    def newest(self) -> tuple[Pod, ...]:
        """The pods of that revision."""
        revision = self.revision
        return tuple(pod for pod in self.pods if pod.revision == revision)

    @property
    def loading(self) -> tuple[Pod, ...]:
        """Newest pods whose sidecars say why they are not ready; of many, a few are enough."""
        return tuple(pod for pod in self.newest if pod.answers and not pod.ready)[:_LOADING_ASKED]


def model_from(body: Body, class_body: Body | None = None) -> Model:
    """The record of a BatchedModel; `class_body`: the class that it names, where that is there."""
    metadata, class_name = body["metadata"], class_name_of(body)
    spec = None
    mistakes: tuple[str, ...] = ()
    unread = str(body.get(UNREAD, ""))
    own = None if unread else read_own_spec(body)
    try:
        model_class = None if class_body is None else _class_from(class_body)
        spec = None if unread else read_manifest(body, model_class).spec
    except InvalidManifest as error:
        mistakes = tuple(str(mistake) for mistake in error.mistakes)
    return Model(
        key=Key(namespace=metadata["namespace"], name=metadata["name"]),
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        spec=spec,
        mistakes=mistakes,
        unread=unread,
        class_name=class_name or "",
        own=own if class_name else None,
        lacks_class=class_name is not None and class_body is None,
        # What a class says changes without another generation.
        spec_digest=_own_digest(own) if class_name or spec is not None else "",
        class_seen=class_seen(class_body),
        status=body.get("status") or {},
    )


def _own_digest(own: Spec | None) -> str:
    return "" if own is None else digest(beyond_defaults(own))


def _class_from(body: Body) -> ModelClass:
    if UNREAD in body:
        where = f"{CLASS_KIND} {body['metadata']['name']}: spec"
        raise InvalidManifest((Mistake(field=where, rule=str(body[UNREAD])),))
    return read_class(body)


def child_from(kind: Kind, body: Body) -> Child:
    """The record of a child."""
    metadata = body["metadata"]
    return Child(
        kind=kind,
        name=metadata["name"],
        uid=metadata["uid"],
        owners=tuple(metadata.get("ownerReferences") or ()),
        deleting="deletionTimestamp" in metadata,
        body=body,
    )


def pod_from(body: Body) -> Pod:
    """The record of a pod."""
    metadata, status = body["metadata"], body.get("status") or {}
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        address=status.get("podIP") or "",
        revision=(metadata.get("labels") or {}).get(REVISION_LABEL, ""),
        deleting="deletionTimestamp" in metadata,
        ready=condition(status, "Ready").get("status") == "True",
        sidecar_started=any(
            container["name"] == BATCHER_CONTAINER and container.get("started") is True
            for container in status.get("initContainerStatuses") or ()
        ),
        settings_annotation=(metadata.get("annotations") or {}).get(BATCHING_HASH_ANNOTATION, ""),
        body=body,
    )


def after(
    observed: Observed, *, live: Mapping[Kind, Body], deleted: Set[str], memory: Memory
) -> Observed:
    """What another reconcile would observe, as far as it is known from writing it.

    `live`: objects as they are after being applied; `deleted`: uids.
    """
    written = {kind: child_from(kind, live[kind]) for kind in CHILDREN if kind in live}
    kept = [body for kind, body in live.items() if kind is Kind.CONTROLLER_REVISION]
    revisions = (*observed.revisions, *revisions_from(kept, observed.model))
    return replace(
        observed,
        children={
            kind: child
            for kind, child in {**observed.children, **written}.items()
            if child.uid not in deleted
        },
        revisions=tuple(one for one in revisions if one.uid not in deleted),
        memory=memory,
        made=written.keys() - observed.children.keys(),
    )


def revisions_from(bodies: Iterable[Body], model: Model) -> tuple[Revision, ...]:
    """The records of the templates that were kept for this BatchedModel, by number."""
    found = [
        Revision(
            name=body["metadata"]["name"],
            uid=body["metadata"]["uid"],
            number=min(int(body.get("revision") or 0), _LARGEST_NUMBER),
            template=template,
        )
        for body in bodies
        if "deletionTimestamp" not in body["metadata"]
        and owned(child_from(Kind.CONTROLLER_REVISION, body), model)
        and (template := _template(body))
    ]
    return tuple(sorted(found, key=lambda one: (one.number, one.name)))


def _template(revision: Body) -> Body | None:
    """The pod template in it; what somebody else wrote there counts as none."""
    data = revision.get("data")
    template = data.get("template") if isinstance(data, Mapping) else None
    metadata = template.get("metadata") if isinstance(template, Mapping) else None
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    spec = template.get("spec") if isinstance(template, Mapping) else None
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    first = containers[0] if isinstance(containers, list) and containers else None
    named = isinstance(first, Mapping) and isinstance(first.get("image"), str)
    return template if named and isinstance(labels, Mapping) else None


def revision_of(template: Body) -> str | None:
    """The revision of a pod template, as its label has it."""
    revision: str | None = (template["metadata"].get("labels") or {}).get(REVISION_LABEL)
    return revision


def owned(child: Child, model: Model) -> bool:
    """Whether the child is this BatchedModel's.

    Admission judges who may write one by the kind of its owners, so an owner of another kind with
    the same UID is none.
    """
    return any(
        owner.get("kind") == Kind.BATCHED_MODEL and owner.get("uid") == model.uid
        for owner in child.owners
    )


def left_behind(child: Child, model: Model) -> bool:
    """Whether the child is an earlier BatchedModel's of the same name, about to be collected."""
    return any(
        owner.get("kind") == Kind.BATCHED_MODEL
        and owner.get("name") == model.key.name
        and owner.get("uid") != model.uid
        for owner in child.owners
    )


def keys_of(child: Body) -> frozenset[Key]:
    """The BatchedModels that an event about a child or a pod concerns.

    By its label, and by its owner too: a child that was relabelled is still to be put right.
    """
    metadata = child.get("metadata") or {}
    names = {
        owner.get("name")
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("controller")
        and owner.get("kind") == Kind.BATCHED_MODEL
        and owner.get("apiVersion", "").startswith(f"{GROUP}/")
    }
    names.add((metadata.get("labels") or {}).get(NAME_LABEL))
    namespace = metadata.get("namespace")
    return frozenset(Key(namespace=namespace, name=name) for name in names if namespace and name)


def controller_of(metadata: Body) -> str:
    """The uid of an object's controller; empty when it has none."""
    owners = metadata.get("ownerReferences") or ()
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


def is_news(model: Body) -> bool:
    """Whether no operator has reconciled a BatchedModel since it was last edited."""
    metadata, status = model.get("metadata") or {}, model.get("status") or {}
    return bool(metadata.get("generation") != status.get("observedGeneration"))


def condition(status: Body, name: str) -> Body:
    """A condition of an object's status by its type; empty when there is none."""
    given = status.get("conditions")
    found = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return next((one for one in found if one.get("type") == name), {})


def holds_replicas(deployment: Body, manager: str = FIELD_MANAGER) -> bool:
    """Whether an apply of the manager's is what `spec.replicas` rest on.

    If it is, leaving them out of the next apply would set them to 1.
    """
    return any(
        entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
        for entry in deployment["metadata"].get("managedFields") or ()
    )


def digest(value: Any) -> str:
    """Short hash of anything that is JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content(body: Body, manifest: Body) -> str:
    """Digest of those parts of a live object that are ours to keep as they are.

    Compared only with an earlier digest of the same object, never with what was sent: the API
    server rewrites quantities ("1000m" comes back as "1") and adds defaults.
    """
    spec = dict(body.get("spec") or {})
    if "replicas" not in manifest.get("spec", {}):
        spec.pop("replicas", None)
    live, ours = body["metadata"], manifest["metadata"]
    kept = {
        part: {name: (live.get(part) or {}).get(name) for name in ours.get(part, {})}
        for part in ("labels", "annotations")
    }
    owners = live.get("ownerReferences")
    return digest([spec, body.get("data"), body.get("binaryData"), kept, owners])
