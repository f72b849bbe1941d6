"""The containers of ours in a pod: what fetches files, the sidecar, and the model's server."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.environment import PREFIX, AcceleratorNeed, FetchSettings
from batchedmodel_contract.processes.logs import LogFormat
from batchedmodel_kube.manifest.pod_settings import (
    model_server_settings,
    sidecar_settings,
    source_to_json,
    to_environment,
)
from batchedmodel_kube.manifest.spec import PullPolicy, Spec
from batchedmodel_kube.manifest.workload import (
    ScalingMetric,
    ScalingVia,
    SecurityProfile,
    UpgradeMode,
    UserIds,
)
from batchedmodel_kube.names import (
    BATCHER_CONTAINER,
    BATCHER_TEMPORARY_VOLUME,
    CACHE_VOLUME,
    DATA_PORT,
    FETCH_CONTAINER,
    FILES_VOLUME,
    MEMORY_VOLUME,
    MODEL_CONTAINER,
    POD_UID_VARIABLE,
    SETTINGS_PATH,
    SETTINGS_VOLUME,
    SOCKET_FOLDER,
    SOCKET_PATH,
    SOCKET_VOLUME,
    TEMPORARY_VOLUME,
)
from batchedmodel_operator.observed import effective
from batchedmodel_operator.observed.state import Model
from batchedmodel_operator.render.adapters import adapters_mounts, adapters_token
from batchedmodel_operator.render.common import Manifest
from batchedmodel_operator.render.files import (
    CACHE_PATH,
    HUB_PATH,
    fetched_repository,
    files_mounts,
    hub_token,
    source_in_pod,
)
from batchedmodel_operator.render.resources import (
    fetch_resources,
    model_resources,
    sidecar_resources,
)

_TEMPORARY_PATH: Final = "/tmp"
_TOKEN_FILE: Final = f"{_TEMPORARY_PATH}/admin-token"
"""On a volume that no other container may mount."""
_SOCKET_MOUNT: Final = {"name": SOCKET_VOLUME, "mountPath": SOCKET_FOLDER}
# The folder, not one file of it: a file that is mounted alone is never refreshed.
_SETTINGS_MOUNT: Final = {"name": SETTINGS_VOLUME, "mountPath": SETTINGS_PATH, "readOnly": True}
_DRAIN: Final = ["python", "-m", "batchedmodel_sidecar.admin_client", "drain"]
_POD_UID: Final = {
    "name": POD_UID_VARIABLE,
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
}
_LAST_WORDS: Final = "FallbackToLogsOnError"
"""What a container that failed said last stands in the pod's status."""
_SIDECAR_START_SECONDS: Final = 120
_STARTUP_PERIOD_SECONDS: Final = 2
_ACCOUNT: Final = {
    # The user is a number without an account: libraries that ask for its name or home would fail.
    "HOME": CACHE_PATH,
    "USER": "batchedmodel",
    "XDG_CACHE_HOME": CACHE_PATH,
    "HF_HOME": f"{CACHE_PATH}/huggingface",
}
_OFFLINE: Final = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
"""What authors set where no hub may be asked."""
_USER: Final = 65532
GROUP_OF_FILES: Final = _USER
_OWN_USER: Final = {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What the chart says about images, their users, how they log, and where HPAs ask."""

    sidecar: str
    model_server: str
    pull_policy: PullPolicy
    ids: UserIds = UserIds.FIXED
    log_format: LogFormat = LogFormat.TEXT
    via: ScalingVia = ScalingVia.CUSTOM_METRICS
    upgrade: UpgradeMode = UpgradeMode.PINNED

    def ids_of(self, spec: Spec) -> UserIds:
        """What holds for a model."""
        return spec.security.ids or self.ids

    def upgrade_of(self, spec: Spec) -> UpgradeMode:
        """What holds for a model."""
        return spec.sidecar.upgrade or self.upgrade

    def in_force(self, spec: Spec) -> dict[str, dict[str, str]]:
        """What holds for a model of all that the manifest may leave to the chart."""
        scaling = spec.autoscaling
        found = {
            "model": {"imagePullPolicy": (spec.model.image_pull_policy or self.pull_policy).value},
            "sidecar": {"upgrade": self.upgrade_of(spec).value},
            "security": {"ids": self.ids_of(spec).value},
        }
        if scaling is not None and scaling.metric is not ScalingMetric.CPU:
            found["autoscaling"] = {"via": (scaling.via or self.via).value}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBatching:
    """What pods are told about batching at their start, and keep until they are replaced."""

    max_batch_size: int
    """Largest batch to warm up for."""
    drain_timeout_seconds: int
    max_queue_size: int
    """By which the sidecar's memory is reserved."""


def fetch_container(spec: Spec, images: Images) -> Manifest | None:
    """The container that fetches, once and before all others; None where nothing is to be fetched.

    Its image is the model server's: both agree on where files lie.
    """
    model, repository = spec.model, fetched_repository(spec.model)
    if repository is None:
        return None
    settings = FetchSettings(
        source=source_to_json(source_in_pod(model.source)),
        trust=model.trust_remote_code,
        cache_folder=CACHE_PATH,
        report_file="/dev/termination-log",
        log_format=images.log_format,
    )
    # Proxies and mirrors are told to it as they are to the model.
    own = {name: value for name, value in model.env if not name.startswith(PREFIX)}
    home = {"HOME": _TEMPORARY_PATH, "HF_HOME": f"{_TEMPORARY_PATH}/huggingface"}
    variables = home | own | to_environment(settings)
    token = hub_token(repository.token_secret_ref)
    if token:
        variables.pop("HF_TOKEN", None)
    return {
        "name": FETCH_CONTAINER,
        "image": model.image or images.model_server,
        "imagePullPolicy": (model.image_pull_policy or images.pull_policy).value,
        "command": ["python", "-m", "batchedmodel_model_server.sources.fetch"],
        "env": [*_environment(variables), *token],
        "resources": fetch_resources(spec),
        "terminationMessagePolicy": _LAST_WORDS,
        "securityContext": _of_our_container(spec.security.profile, images.ids_of(spec)),
        "volumeMounts": [
            {"name": FILES_VOLUME, "mountPath": HUB_PATH},
            {"name": TEMPORARY_VOLUME, "mountPath": _TEMPORARY_PATH},
        ],
    }


def sidecar_container(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    """The native sidecar. Its readiness is the pod's; its own start never waits for the model."""
    foreign = spec.model.protocol is not None
    settings = replace(
        sidecar_settings(model.key.name, spec, settings_folder=SETTINGS_PATH),
        model_socket="" if foreign else SOCKET_PATH,
        upstream_url=f"http://127.0.0.1:{effective.model_port(spec)}" if foreign else "",
        port=DATA_PORT,
        admin_port=sidecar_api.ADMIN_PORT,
        token_file=_TOKEN_FILE,
        drain_delay_seconds=float(spec.drain.delay_seconds),
        drain_timeout_seconds=float(pinned.drain_timeout_seconds),
        log_level=spec.sidecar.log_level,
        log_format=images.log_format,
    )
    return {
        "name": BATCHER_CONTAINER,
        "image": spec.sidecar.image or images.sidecar,
        "imagePullPolicy": images.pull_policy.value,
        "restartPolicy": "Always",
        "env": [*_environment(to_environment(settings)), _POD_UID],
        "ports": [
            {"name": "http", "containerPort": DATA_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": sidecar_api.ADMIN_PORT, "protocol": "TCP"},
        ],
        "terminationMessagePolicy": _LAST_WORDS,
        "resources": sidecar_resources(spec, pinned.max_queue_size),
        "securityContext": _of_our_container(spec.security.profile, images.ids_of(spec)),
        "volumeMounts": [
            _SOCKET_MOUNT,
            _SETTINGS_MOUNT,
            {"name": BATCHER_TEMPORARY_VOLUME, "mountPath": _TEMPORARY_PATH},
        ],
        # The kubelet begins the hooks of all containers as soon as the pod is to end, and stops
        # this one last. Only who may run a program in this container can ask for a drain, too.
        "lifecycle": {"preStop": {"exec": {"command": _DRAIN}}},
        "startupProbe": _admin_probe(
            sidecar_api.LIVE, periodSeconds=1, failureThreshold=_SIDECAR_START_SECONDS
        ),
        "livenessProbe": _admin_probe(sidecar_api.LIVE, periodSeconds=10, failureThreshold=6),
        "readinessProbe": _admin_probe(sidecar_api.READY, periodSeconds=2, failureThreshold=2),
    }


def model_container(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    """The container that holds the accelerator: our model server, or one of the user's own.

    Its probes and its hook ask the sidecar.
    """
    container: Manifest = {
        "name": MODEL_CONTAINER,
        "image": spec.model.image or images.model_server,
        "imagePullPolicy": (spec.model.image_pull_policy or images.pull_policy).value,
        "env": [
            *_environment(_variables(model, spec, images, pinned)),
            *adapters_token(spec.adapters),
        ],
        "terminationMessagePolicy": _LAST_WORDS,
        "resources": model_resources(spec),
        "securityContext": of_authors_container(spec.security.profile, spec.model.security_context),
        "volumeMounts": [
            _SOCKET_MOUNT,
            {"name": CACHE_VOLUME, "mountPath": CACHE_PATH},
            {"name": TEMPORARY_VOLUME, "mountPath": _TEMPORARY_PATH},
            {"name": MEMORY_VOLUME, "mountPath": "/dev/shm"},
            *files_mounts(spec.model),
            *([] if spec.adapters is None else [_SETTINGS_MOUNT]),
            *adapters_mounts(spec.adapters),
            *(spec.model.volume_mounts or ()),
        ],
        "startupProbe": _admin_probe(
            sidecar_api.MODEL_STARTUP,
            periodSeconds=_STARTUP_PERIOD_SECONDS,
            failureThreshold=ceil(spec.startup.timeout_seconds / _STARTUP_PERIOD_SECONDS),
        ),
        # For a minute: while the sidecar itself restarts nobody answers, and that must not cost a
        # loaded model. A model known to be dead has nothing left to drain.
        "livenessProbe": _admin_probe(
            sidecar_api.MODEL_LIVE,
            periodSeconds=10,
            failureThreshold=6,
            terminationGracePeriodSeconds=5,
        ),
        # The kubelet stops sidecars only after this container has ended. Without the hook the model
        # would be gone while requests still wait for it. It only waits: the sidecar's own hook,
        # which begins at the same time, has the token.
        "lifecycle": {
            "preStop": {"httpGet": {"path": sidecar_api.DRAINED, "port": sidecar_api.ADMIN_PORT}}
        },
    }
    optional = {
        "command": list(spec.model.command),
        "args": list(spec.model.args),
        "envFrom": spec.model.env_from,
    }
    container |= {name: value for name, value in optional.items() if value}
    if spec.model.protocol is not None:
        port = effective.model_port(spec)
        container["ports"] = [{"name": "model", "containerPort": port, "protocol": "TCP"}]
    return container


def _environment(variables: Mapping[str, str]) -> list[Manifest]:
    """A container's `env`, in an order that depends on the names only."""
    return [{"name": name, "value": variables[name]} for name in sorted(variables)]


def own_user(ids: UserIds) -> dict[str, Any]:
    """The part of a security context by which nobody is root."""
    # A cluster that gives each namespace a range of its own refuses any number but its own.
    return dict(_OWN_USER) if ids is UserIds.FIXED else {"runAsNonRoot": True}


def _of_our_container(profile: SecurityProfile, ids: UserIds) -> Manifest:
    """The security context of a container of ours: without rights in every profile."""
    context = _restricted(read_only=True)
    # A pod of this profile leaves the user to the images.
    return context | own_user(ids) if profile is SecurityProfile.BASELINE else context


def of_authors_container(
    profile: SecurityProfile, given: Mapping[str, object] | None
) -> dict[str, Any]:
    """That of a container whose image the manifest's author chose; `given` overrides it."""
    if profile is SecurityProfile.BASELINE:
        return dict(given or {})
    # User code and foreign images may write where they like within their own file system.
    return _restricted(read_only=False) | dict(given or {})


def _restricted(*, read_only: bool) -> Manifest:
    """What the pod security standard `restricted` asks for."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


def _admin_probe(path: str, **timing: int) -> Manifest:
    """A probe of the sidecar's admin port; the kubelet asks it at the pod's address."""
    return {
        "httpGet": {"path": path, "port": sidecar_api.ADMIN_PORT},
        "timeoutSeconds": 5,
        **timing,
    }


def _variables(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> dict[str, str]:
    given = dict(spec.model.env)
    if spec.model.handler is None:
        return given
    # A model's files are fetched before; adapters come while it serves.
    offline = {"HF_HUB_OFFLINE": "1"} if fetched_repository(spec.model) else {}
    settings = replace(
        model_server_settings(
            model.key.name,
            spec,
            model_socket=SOCKET_PATH,
            settings_folder=SETTINGS_PATH,
            cache_folder=CACHE_PATH,
        ),
        source=source_to_json(source_in_pod(spec.model.source)),
        max_batch_size=pinned.max_batch_size,
        accelerator=AcceleratorNeed.NONE if spec.accelerator is None else AcceleratorNeed.REQUIRED,
        adapters_online=spec.adapters is not None and bool(offline) and not _OFFLINE & given.keys(),
        log_format=images.log_format,
    )
    usual = _ACCOUNT | offline
    # Users may change cache and account, but nothing that the sidecar relies on.
    own = {name: value for name, value in given.items() if not name.startswith(PREFIX)}
    if adapters_token(spec.adapters):
        own.pop("HF_TOKEN", None)
    return usual | own | to_environment(settings)
