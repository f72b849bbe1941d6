"""The pod: its containers, what they share, where it runs, how it ends."""

from typing import Any, Final

from batchedmodel_contract.processes.sidecar_api import MOST_DRAIN_DELAYS
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import SecurityProfile, UserIds
from batchedmodel_kube.names import (
    BATCHER_TEMPORARY_VOLUME,
    CACHE_VOLUME,
    MEMORY_VOLUME,
    PRODUCT_LABEL,
    PRODUCT_MAKER,
    SETTINGS_VOLUME,
    SOCKET_VOLUME,
    TEMPORARY_VOLUME,
)
from batchedmodel_operator.kinds import Kind, child_name
from batchedmodel_operator.observed.state import Model
from batchedmodel_operator.render.adapters import adapters_volumes
from batchedmodel_operator.render.common import Manifest, selector
from batchedmodel_operator.render.containers import (
    GROUP_OF_FILES,
    Images,
    PinnedBatching,
    fetch_container,
    model_container,
    of_authors_container,
    own_user,
    sidecar_container,
)
from batchedmodel_operator.render.files import files_volumes, sized_by_limit
from batchedmodel_operator.render.resources import DISK

_STOP_MARGIN_SECONDS: Final = 15
"""What the containers may take to end after the drain, before the kubelet kills them."""
_OF_OURS: Final = "64Mi"
"""Volumes in which only sockets and small files lie."""
_SHARED_MEMORY: Final = "8Gi"
"""Of a model whose memory has no limit."""
_TEMPORARY: Final = "16Gi"
"""Files of a moment, of a model whose disk has no limit."""
_SPREAD_OVER: Final = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
_WHOLE_GPU: Final = "nvidia.com/gpu"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def pod_spec(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    """The `spec` of the pod template."""
    fetch = fetch_container(spec, images)
    sidecar = sidecar_container(model, spec, images, pinned)
    body: Manifest = {
        # As an init container that is always restarted the sidecar starts before the model and
        # ends after it. It has nothing to do while files are fetched. Those of the manifest come
        # after it: one of them that is always restarted as well then ends before it.
        "initContainers": [*([] if fetch is None else [fetch]), sidecar, *_init_containers(spec)],
        "containers": [model_container(model, spec, images, pinned)],
        "volumes": [
            *_volumes(model, spec),
            *files_volumes(spec.model),
            *adapters_volumes(spec.adapters),
            *(spec.pod.volumes or ()),
        ],
        "securityContext": _security_context(spec.security.profile, images.ids_of(spec)),
        "automountServiceAccountToken": spec.pod.automount_service_account_token,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": (
            MOST_DRAIN_DELAYS * spec.drain.delay_seconds
            + pinned.drain_timeout_seconds
            + _STOP_MARGIN_SECONDS
        ),
    }
    return body | _placement(model, spec)


def _volumes(model: Model, spec: Spec) -> list[Manifest]:
    # It counts as memory of the container.
    limits = dict(spec.model.resources.limits)
    shared = limits.get("memory", _SHARED_MEMORY)
    temporary = limits.get(DISK, _TEMPORARY)
    settings = {"name": child_name(Kind.CONFIG_MAP, model.key.name)}
    return [
        {"name": SOCKET_VOLUME, "emptyDir": {"sizeLimit": _OF_OURS}},
        {"name": SETTINGS_VOLUME, "configMap": settings},
        {"name": CACHE_VOLUME, "emptyDir": sized_by_limit(spec.model)},
        {"name": TEMPORARY_VOLUME, "emptyDir": {"sizeLimit": temporary}},
        {"name": BATCHER_TEMPORARY_VOLUME, "emptyDir": {"sizeLimit": _OF_OURS}},
        # The 64 MiB that a container gets otherwise are too few for servers of several processes.
        {"name": MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": shared}},
    ]


def _init_containers(spec: Spec) -> list[Manifest]:
    given: list[Any] = spec.pod.init_containers or []
    profile = spec.security.profile
    return [
        one | {"securityContext": of_authors_container(profile, one.get("securityContext"))}
        for one in given
    ]


def _security_context(profile: SecurityProfile, ids: UserIds) -> Manifest:
    context: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if ids is UserIds.FIXED:
        # Whoever writes the socket, the sidecar can use it.
        context |= {"fsGroup": GROUP_OF_FILES, "fsGroupChangePolicy": "OnRootMismatch"}
    return context | own_user(ids) if profile is SecurityProfile.RESTRICTED else context


def _placement(model: Model, spec: Spec) -> Manifest:
    """The fields that say on which nodes it runs, and by whose leave; none that would be empty."""
    given = {
        "nodeSelector": dict(spec.pod.node_selector),
        "tolerations": _tolerations(spec),
        "affinity": _affinity(spec),
        "topologySpreadConstraints": _spread(model, spec),
        "priorityClassName": spec.pod.priority_class_name,
        "runtimeClassName": spec.pod.runtime_class_name,
        "schedulerName": spec.pod.scheduler_name,
        "serviceAccountName": spec.pod.service_account_name,
        "imagePullSecrets": [{"name": name} for name in spec.pod.image_pull_secrets],
    }
    return {name: value for name, value in given.items() if value}


def _tolerations(spec: Spec) -> list[object]:
    given = list(spec.pod.tolerations or ())
    accelerator = spec.accelerator
    if accelerator is None or not accelerator.tolerate:
        return given
    # Of that effect only: who takes devices out of service evicts with NoExecute.
    keys = [accelerator.resource]
    if accelerator.resource.startswith(PRODUCT_MAKER) and accelerator.resource != _WHOLE_GPU:
        # Pools whose devices are cut or shared have the taint of the whole ones.
        keys.append(_WHOLE_GPU)
    own = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return [*given, *own]


def _affinity(spec: Spec) -> Manifest | None:
    given: Manifest | None = spec.pod.affinity
    if spec.accelerator is None or not spec.accelerator.product_labels:
        return given
    products = list(spec.accelerator.product_labels)
    wanted = {"key": PRODUCT_LABEL, "operator": "In", "values": products}
    return _also_required(given or {}, wanted)


def _also_required(affinity: Manifest, wanted: Manifest) -> Manifest:
    """The affinity with one more demand on the node, in each of its alternatives."""
    node: Any = affinity.get("nodeAffinity") or {}
    required = node.get(_REQUIRED) or {}
    terms = [
        term | {"matchExpressions": [*(term.get("matchExpressions") or ()), wanted]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    required = required | {"nodeSelectorTerms": terms}
    return affinity | {"nodeAffinity": node | {_REQUIRED: required}}


def _spread(model: Model, spec: Spec) -> list[Manifest]:
    pods = {"labelSelector": {"matchLabels": selector(model)}}
    given: list[Any] | None = spec.pod.topology_spread_constraints
    if given is not None:
        return [pods | one for one in given]
    return [
        {
            "maxSkew": 1,
            "topologyKey": topology,
            "whenUnsatisfiable": "ScheduleAnyway",
            # Each revision by itself: pods that are to go leave no lopsided rest.
            "matchLabelKeys": ["pod-template-hash"],
            **pods,
        }
        for topology in _SPREAD_OVER
    ]
