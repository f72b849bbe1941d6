"""Plays an edit through in memory, by the operator's own planning and the autoscaler's reader.

The only module here that knows the other processes; it uses only their pure parts. So no list of
what each field does has to be kept. The live spec is applied first, as in the cluster, so that the
pod templates that the operator keeps from then on are kept here too.
"""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from batchedmodel_autoscaler.cluster.objects import Model as Wishes
from batchedmodel_autoscaler.cluster.objects import read_model
from batchedmodel_cli.diff.fields import as_manifest, leaves
from batchedmodel_kube.manifest.spec import PullPolicy, Spec
from batchedmodel_kube.manifest.workload import ScalingVia, UpgradeMode, UserIds
from batchedmodel_operator.conditions.status import report
from batchedmodel_operator.kinds import FIELD_MANAGER, SEED_MANAGER, Kind
from batchedmodel_operator.observed.memory import Applied, Memory
from batchedmodel_operator.observed.state import (
    Key,
    Model,
    Observed,
    Revision,
    child_from,
    content,
    digest,
)
from batchedmodel_operator.planning.plan import Apply, Plan, plan
from batchedmodel_operator.render import Images

__all__ = ["DryRun", "Kind", "LiveModel", "Outcome"]

_Choice = TypeVar("_Choice", bound=StrEnum)
_MOST_LOOKS: Final = 10
_NO_TIME: Final = ""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
"""Without pods nothing has waited since any time."""
_CHART_IMAGE: Final = "the chart's"
"""Stands for the images that the chart gives the operator; they are the same on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """A BatchedModel as it is in a cluster."""

    namespace: str
    name: str
    uid: str
    spec: Spec
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a cluster holds when the operator has carried out a spec."""

    spec: Spec
    children: Mapping[Kind, Mapping[str, Any]]
    kept: frozenset[str]
    """Names of the pod templates that are kept."""
    wishes: Wishes
    """The scaling rules as the autoscaler reads them."""
    in_force: Mapping[str, object]
    """Effective values of fields that the manifest may leave out, by their paths."""

    @property
    def pods(self) -> int:
        """Their number, as far as it is known before the autoscaler measures anything."""
        count: int = self.children[Kind.DEPLOYMENT]["spec"]["replicas"]
        autoscaler = self.children.get(Kind.AUTOSCALER)
        if autoscaler is None or not count:
            return count
        bounds = autoscaler["spec"]
        fewest, most = int(bounds["minReplicas"]), int(bounds["maxReplicas"])
        return max(fewest, min(count, most))


class DryRun:
    """One live model, and what edits would make of it."""

    def __init__(self, live: LiveModel) -> None:
        self._images = _images(live)
        model = Model(
            key=Key(namespace=live.namespace, name=live.name),
            uid=live.uid,
            generation=1,
            spec=live.spec,
            mistakes=(),
            # The findings of rollouts are about pods, and there are none here.
            status={name: found for name, found in live.status.items() if name != "rollout"},
        )
        nothing = Observed(model=model, children={}, revisions=(), pods=(), memory=Memory())
        self._now = _scaled(self._settled(nothing), live.status)

    @property
    def before(self) -> Outcome:
        """What there is."""
        return self._outcome(self._now)

    def after(self, spec: Spec) -> Outcome:
        """What there would be with this spec, which keeps the contract's rules."""
        now = self._now.model
        model = dataclasses.replace(now, spec=spec, generation=now.generation + 1)
        return self._outcome(self._settled(dataclasses.replace(self._now, model=model)))

    def _settled(self, observed: Observed) -> Observed:
        for _ in range(_MOST_LOOKS):
            steps = plan(observed, self._images, now=0.0, at=_NEVER)
            rests = not steps.applies and not steps.deletions
            observed = _taken(observed, steps)
            if rests:
                return observed
        raise AssertionError("the operator's plan comes to rest")

    def _outcome(self, observed: Observed) -> Outcome:
        model = observed.model
        assert model.spec is not None
        metadata = {"namespace": model.key.namespace, "name": model.key.name, "uid": model.uid}
        # The reader takes defaults of targets from other sections, whether or not the metric needs
        # them. Where it does, the HPA's manifest has them as well.
        scaling = {"autoscaling": as_manifest(model.spec).get("autoscaling")}
        return Outcome(
            spec=model.spec,
            children={kind: child.body for kind, child in observed.children.items()},
            kept=frozenset(kept.name for kept in observed.revisions),
            wishes=read_model({"metadata": metadata, "spec": scaling}),
            in_force=dict(leaves(model.status["effective"])),
        )


def _images(live: LiveModel) -> Images:
    """What the chart says, as far as the status tells.

    What the manifest says itself hides it; then the chart's own defaults are taken.
    """
    spec, found = live.spec, dict(leaves(live.status, "status"))
    image = None if spec.model.image else found.get("status.effective.model.image")

    def told(path: str, said: object, default: _Choice) -> _Choice:
        kind, value = type(default), found.get(f"status.effective.{path}")
        return kind(str(value)) if said is None and value in list(kind) else default

    via = None if spec.autoscaling is None else spec.autoscaling.via
    return Images(
        sidecar=_CHART_IMAGE,
        model_server=image if isinstance(image, str) else _CHART_IMAGE,
        pull_policy=told(
            "model.imagePullPolicy", spec.model.image_pull_policy, PullPolicy.IF_NOT_PRESENT
        ),
        ids=told("security.ids", spec.security.ids, UserIds.FIXED),
        via=told("autoscaling.via", via, ScalingVia.CUSTOM_METRICS),
        upgrade=told("sidecar.upgrade", spec.sidecar.upgrade, UpgradeMode.PINNED),
    )


def _scaled(observed: Observed, status: Mapping[str, Any]) -> Observed:
    """The cluster with as many pods as the autoscaler has asked for."""
    spec = observed.model.spec
    found = status.get("desiredReplicas")
    if spec is None or spec.autoscaling is None or spec.suspend or not isinstance(found, int):
        return observed
    child = observed.children[Kind.DEPLOYMENT]
    body = copy.deepcopy(dict(child.body))
    body["spec"]["replicas"] = found or body["spec"]["replicas"]
    scaled = dataclasses.replace(child, body=body)
    return dataclasses.replace(observed, children={**observed.children, Kind.DEPLOYMENT: scaled})


def _taken(observed: Observed, steps: Plan) -> Observed:
    """The cluster after these steps, as an API server would leave it."""
    gone = {(step.kind, step.name) for step in steps.deletions}
    children = {
        kind: child for kind, child in observed.children.items() if (kind, child.name) not in gone
    }
    revisions = [
        kept for kept in observed.revisions if (Kind.CONTROLLER_REVISION, kept.name) not in gone
    ]
    applied = dict(observed.memory.applied)
    for step in steps.applies:
        if step.kind is Kind.CONTROLLER_REVISION:
            revisions.append(_revision(step.manifest))
            continue
        before = children.get(step.kind)
        body = _applied(None if before is None else before.body, step)
        children[step.kind] = child_from(step.kind, body)
        if step.manager == FIELD_MANAGER:
            uid = body["metadata"]["uid"]
            applied[step.kind] = Applied(
                uid=uid, rendered=digest(step.manifest), content=content(body, step.manifest)
            )
    after = dataclasses.replace(
        observed,
        children=children,
        revisions=tuple(revisions),
        memory=dataclasses.replace(observed.memory, applied=applied),
    )
    status = {**observed.model.status, **report(after, steps, None, at=_NO_TIME)}
    return dataclasses.replace(after, model=dataclasses.replace(observed.model, status=status))


def _revision(manifest: Mapping[str, Any]) -> Revision:
    name = manifest["metadata"]["name"]
    return Revision(
        name=name, uid=name, number=manifest["revision"], template=manifest["data"]["template"]
    )


def _applied(live: Mapping[str, Any] | None, step: Apply) -> dict[str, Any]:
    """The object after this step: as its manifest says, but replicas may be the autoscaler's."""
    body: dict[str, Any] = copy.deepcopy(dict(step.manifest if live is None else live))
    before = body.get("spec", {}).get("replicas")
    if step.manager == SEED_MANAGER:
        body["spec"]["replicas"] = step.manifest["spec"]["replicas"]
    else:
        body = copy.deepcopy(dict(step.manifest))
    if before is not None:
        body["spec"].setdefault("replicas", before)
    metadata = body["metadata"]
    metadata["uid"] = step.kind.value
    metadata["resourceVersion"] = "1"
    metadata.pop("managedFields", None)
    if step.manager == FIELD_MANAGER and "replicas" in step.manifest.get("spec", {}):
        fields: dict[str, Any] = {"f:spec": {"f:replicas": {}}}
        metadata["managedFields"] = [
            {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
        ]
    return body
