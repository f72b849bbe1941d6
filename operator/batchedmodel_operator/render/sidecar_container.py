"""The sidecar's container."""

from typing import Final

from batchedmodel_contract.kubernetes.names import (
    ADMIN_PORT,
    BATCHER_CONTAINER,
    BATCHER_TEMPORARY_VOLUME,
    DATA_PORT,
    POD_UID_VARIABLE,
    SETTINGS_PATH,
    SETTINGS_VOLUME,
    SOCKET_PATH,
)
from batchedmodel_contract.manifest.spec import PullPolicy, ServerProtocol, Spec
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.environment import SidecarSettings, to_environment
from batchedmodel_operator.reconcile import effective
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.common import Manifest
from batchedmodel_operator.render.containers import (
    SOCKET_MOUNT,
    TEMPORARY_PATH,
    PinnedBatching,
    admin_probe,
    environment,
    of_our_container,
    resources,
)

_START_SECONDS: Final = 120
_TOKEN_FILE: Final = f"{TEMPORARY_PATH}/admin-token"
"""On a volume that no other container may mount."""
_DRAIN: Final = ["python", "-m", "batchedmodel_sidecar.admin_client", "drain"]
_POD_UID: Final = {
    "name": POD_UID_VARIABLE,
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
}


def batcher(
    model: Model,
    spec: Spec,
    *,
    image: str,
    pull_policy: PullPolicy,
    pinned: PinnedBatching,
) -> Manifest:
    """The native sidecar. Its readiness is the pod's; its own start never waits for the model."""
    foreign = spec.model.protocol is not None
    protocol = spec.model.protocol or ServerProtocol.V2
    settings = SidecarSettings(
        model_name=model.key.name,
        model_socket="" if foreign else SOCKET_PATH,
        upstream_url=f"http://127.0.0.1:{effective.model_port(spec)}" if foreign else "",
        upstream_protocol=protocol,
        replicated_outputs=spec.model.replicated_outputs,
        pass_paths=spec.model.pass_paths,
        idempotent=spec.model.idempotent,
        settings_folder=SETTINGS_PATH,
        port=DATA_PORT,
        admin_port=ADMIN_PORT,
        token_file=_TOKEN_FILE,
        drain_delay_seconds=float(spec.drain.delay_seconds),
        drain_timeout_seconds=float(pinned.drain_timeout_seconds),
        log_level=spec.sidecar.log_level,
    )
    return {
        "name": BATCHER_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy.value,
        "restartPolicy": "Always",
        "env": [*environment(to_environment(settings)), _POD_UID],
        "ports": [
            {"name": "http", "containerPort": DATA_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": resources(spec.sidecar.resources),
        "securityContext": of_our_container(spec.security.profile),
        "volumeMounts": [
            SOCKET_MOUNT,
            # The folder, not one file of it: a file that is mounted alone is never refreshed.
            {"name": SETTINGS_VOLUME, "mountPath": SETTINGS_PATH, "readOnly": True},
            {"name": BATCHER_TEMPORARY_VOLUME, "mountPath": TEMPORARY_PATH},
        ],
        # The kubelet begins the hooks of all containers as soon as the pod is to end, and stops
        # this one last. Nobody but who may run a program in this container can say the same.
        "lifecycle": {"preStop": {"exec": {"command": _DRAIN}}},
        "startupProbe": admin_probe(
            sidecar_api.LIVE, periodSeconds=1, failureThreshold=_START_SECONDS
        ),
        "livenessProbe": admin_probe(sidecar_api.LIVE, periodSeconds=10, failureThreshold=6),
        "readinessProbe": admin_probe(sidecar_api.READY, periodSeconds=2, failureThreshold=2),
    }
