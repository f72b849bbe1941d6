"""All children but the autoscaler: ConfigMap, Service, Deployment, disruption budget, and the pod
templates that are kept.

Batch settings must never roll pods, although two of them are told to a pod at its start. They stay
as they were when the template was made. One template is kept for each state of the manifest that
matters to pods, and used until somebody edits the manifest or deletes what was kept. Otherwise an
operator of another version, or with other images, would render another template from the same
manifest, and roll every pod of the cluster when it is installed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_kube.manifest.generation import Generation
from batchedmodel_kube.manifest.pod_settings import batch_settings, settings_files
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import DATA_PORT, REVISION_LABEL, VOLUMES
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.observed import effective
from batchedmodel_operator.observed.effective import beyond_defaults, default_of
from batchedmodel_operator.observed.state import Child, Model, digest
from batchedmodel_operator.render.adapters import (
    adapters_annotation,
    adapters_in_pod,
    pinned_adapters,
)
from batchedmodel_operator.render.common import (
    Manifest,
    child,
    labels,
    recommended_labels,
    selector,
)
from batchedmodel_operator.render.containers import Images, PinnedBatching
from batchedmodel_operator.render.files import fetched_repository
from batchedmodel_operator.render.pod import pod_spec
from batchedmodel_operator.rollout import Mode

_PULL_SECONDS: Final = 600
"""How much longer than the model's start a rollout may take until it counts as stuck. It may wait
for a node besides, as long as the manifest says."""
_FETCH_SECONDS: Final = 3600
"""How much longer still where something runs before the model, such as what fetches its files."""
_USUAL_ANNOTATIONS: Final = {
    # What stands in a pod's own volumes is fetched or made again: the pod may be moved for it.
    "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": ",".join(VOLUMES),
}
_FOLLOWS_BATCHING: Final = 0
"""Stands in a revision's digest for what may change without making another revision."""
# Whatever is new in a manifest counts, unless it stands here: too much costs little.
_NO_MATTER_TO_PODS: Final = frozenset(
    {
        *("class_name", "suspend", "replicas", "batching", "autoscaling"),
        *("rollout", "service", "disruption"),
    }
)

# The same below `generation`: running sidecars are told of these.
_LIVE_GENERATION: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        *("max_concurrent_requests", "max_sequences", "max_tokens_per_step"),
        *("target_first_token_milliseconds", "target_token_milliseconds"),
    )
)


def config_map(model: Model, spec: Spec) -> Manifest:
    """The batch settings as one file, and the adapters as another.

    Running sidecars and model servers watch the folder in which they appear.
    """
    data = settings_files(spec, adapters_in_pod(spec.adapters))
    return child(model, Kind.CONFIG_MAP, data=data)


def service(model: Model, spec: Spec) -> Manifest:
    """The Service in front of the sidecars' data ports. Nobody outside needs the admin ports."""
    port = {
        "name": "http",
        "port": spec.service.port,
        "protocol": "TCP",
        # By which meshes and gateways know what passes.
        "appProtocol": "http",
        # A number: not every Kubernetes resolves the name of an init container's port.
        "targetPort": DATA_PORT,
    }
    body = {"type": spec.service.type.value, "selector": selector(model), "ports": [port]}
    if spec.service.ip_family_policy is not None:
        body["ipFamilyPolicy"] = spec.service.ip_family_policy.value
    manifest = child(model, Kind.SERVICE, spec=body)
    if spec.service.annotations:
        manifest["metadata"]["annotations"] = dict(spec.service.annotations)
    return manifest


def disruption_budget(model: Model, spec: Spec) -> Manifest:
    """How many pods may be evicted at a time. Pods that do not serve may always be."""
    body = {
        "selector": {"matchLabels": selector(model)},
        "maxUnavailable": spec.disruption.max_unavailable,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return child(model, Kind.DISRUPTION_BUDGET, spec=body)


def deployment(
    model: Model, spec: Spec, template: Body, *, mode: Mode, replicas: int | None
) -> Manifest:
    """The Deployment. `replicas` None: an autoscaler holds them, so they must not be sent."""
    before = fetched_repository(spec.model) is not None or bool(spec.pod.init_containers)
    body: Manifest = {
        # Said, for what is left out stays as anybody sets it: a paused one rolls nothing out.
        "paused": False,
        "selector": {"matchLabels": selector(model)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": effective.rolling_update(spec, mode),
        },
        "minReadySeconds": spec.rollout.min_ready_seconds,
        "progressDeadlineSeconds": (
            spec.startup.timeout_seconds
            + max(_PULL_SECONDS, spec.rollout.switch_after_seconds)
            + (_FETCH_SECONDS if before else 0)
            + spec.rollout.min_ready_seconds
        ),
        "revisionHistoryLimit": spec.rollout.revision_history_limit,
        "template": dict(template),
    }
    if replicas is not None:
        body["replicas"] = replicas
    return child(model, Kind.DEPLOYMENT, spec=body)


def seed(model: Model, live: Child, replicas: int) -> Manifest:
    """What a second field manager applies, so that the first can let go of `spec.replicas`."""
    return {
        "apiVersion": RESOURCES[Kind.DEPLOYMENT].api_version,
        "kind": Kind.DEPLOYMENT.value,
        "metadata": {"name": live.name, "namespace": model.key.namespace},
        "spec": {"replicas": replicas},
    }


def pod_template(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    """The pod template, labelled with its revision."""
    template = _template(model, spec, images, pinned)
    template["metadata"]["labels"][REVISION_LABEL] = revision(model, spec, images)
    return template


def pinned_batching(spec: Spec) -> PinnedBatching:
    """What a template that is made now tells pods of the batch settings."""
    return PinnedBatching(
        max_batch_size=spec.batching.max_batch_size,
        drain_timeout_seconds=effective.drain_timeout_seconds(spec),
        max_queue_size=batch_settings(spec).max_queue_size,
    )


def revision(model: Model, spec: Spec, images: Images) -> str:
    """Digest of everything that pods depend on; batch settings are not among it."""
    unpinned = PinnedBatching(
        max_batch_size=_FOLLOWS_BATCHING,
        # A limit that is written down is no consequence of the batch settings.
        drain_timeout_seconds=spec.drain.timeout_seconds or _FOLLOWS_BATCHING,
        max_queue_size=_FOLLOWS_BATCHING,
    )
    return digest(_template(model, spec, images, unpinned))


def revision_name(model: Model, spec: Spec) -> str:
    """The name under which the template of this state of the manifest is kept.

    Only what differs from the defaults counts, so that a field which a later operator adds changes
    nothing for those who do not use it.
    """
    return f"{model.key.name}-{digest([model.uid, _matters(spec)])}"


def said_of_pods(model: Model) -> str:
    """Digest of what a manifest that names a class says itself of pods; empty for others."""
    if model.own is None:
        return ""
    return digest([model.class_name, _matters(model.own)])


def _matters(spec: Spec) -> Any:
    generation = dataclasses.replace(spec.generation or Generation(), **_LIVE_GENERATION)
    spec = dataclasses.replace(
        spec,
        generation=None if generation == Generation() else generation,
        # Whether they get other images; the images themselves are no part of a name.
        sidecar=dataclasses.replace(spec.sidecar, upgrade=None),
    )
    matters: dict[str, Any] = {
        field.name: value
        for field in dataclasses.fields(spec)
        if field.name not in _NO_MATTER_TO_PODS
        and (value := getattr(spec, field.name)) != default_of(field)
    }
    if spec.adapters is not None:
        matters["adapters"] = pinned_adapters(spec.adapters)
    return beyond_defaults(matters)


def upgraded_name(name: str, template: Body) -> str:
    """The name under which a later template of the same state of the manifest is kept."""
    return f"{name}-{digest(images_of(template))}"


def images_of(template: Body) -> dict[str, str]:
    """The image of each container of a pod template."""
    spec = template["spec"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return {str(one.get("name")): str(one.get("image")) for one in containers}


def revision_child(model: Model, name: str, number: int, template: Mapping[str, Any]) -> Manifest:
    """The object that keeps a template; `number` is larger for later ones."""
    manifest = child(
        model, Kind.CONTROLLER_REVISION, revision=number, data={"template": dict(template)}
    )
    manifest["metadata"]["name"] = name
    return manifest


def _template(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    metadata = {
        "labels": recommended_labels(model) | dict(spec.pod.labels) | labels(model),
        "annotations": _USUAL_ANNOTATIONS
        | dict(spec.pod.annotations)
        | adapters_annotation(spec.adapters),
    }
    return {"metadata": metadata, "spec": pod_spec(model, spec, images, pinned)}
