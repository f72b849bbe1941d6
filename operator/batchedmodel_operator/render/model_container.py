"""The model's container: our model server, or one of the user's own."""

from math import ceil
from typing import Final

from batchedmodel_contract.kubernetes.names import (
    ADMIN_PORT,
    CACHE_VOLUME,
    MEMORY_VOLUME,
    MODEL_CONTAINER,
    SOCKET_PATH,
    TEMPORARY_VOLUME,
)
from batchedmodel_contract.manifest.spec import PullPolicy, Spec
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.environment import (
    PREFIX,
    AcceleratorNeed,
    ModelServerSettings,
    source_to_json,
    to_environment,
)
from batchedmodel_operator.reconcile import effective
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.common import Manifest
from batchedmodel_operator.render.containers import (
    CACHE_PATH,
    MEMORY_PATH,
    SOCKET_MOUNT,
    TEMPORARY_PATH,
    PinnedBatching,
    admin_probe,
    environment,
    of_authors_container,
    resources,
)
from batchedmodel_operator.render.fetch_container import (
    fetched_repository,
    files_mounts,
    source_in_pod,
)

_STARTUP_PERIOD_SECONDS: Final = 2
_ACCOUNT: Final = {
    # The user is a number without an account: libraries that ask for its name or home would fail.
    "HOME": CACHE_PATH,
    "USER": "batchedmodel",
    "XDG_CACHE_HOME": CACHE_PATH,
    "HF_HOME": f"{CACHE_PATH}/huggingface",
}
_ALL_IS_FETCHED: Final = {"HF_HUB_OFFLINE": "1"}


def model_container(
    model: Model,
    spec: Spec,
    *,
    image: str,
    pull_policy: PullPolicy,
    pinned: PinnedBatching,
) -> Manifest:
    """The container that holds the accelerator. Its probes and its hook ask the sidecar."""
    limits = {}
    if spec.accelerator is not None:
        limits[spec.accelerator.resource] = str(spec.accelerator.count)
    startup = ceil(spec.startup.timeout_seconds / _STARTUP_PERIOD_SECONDS)
    container: Manifest = {
        "name": MODEL_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy.value,
        "env": environment(_variables(model, spec, pinned)),
        "resources": resources(spec.model.resources, **limits),
        "securityContext": of_authors_container(spec.security.profile, spec.model.security_context),
        "volumeMounts": [
            SOCKET_MOUNT,
            {"name": CACHE_VOLUME, "mountPath": CACHE_PATH},
            {"name": TEMPORARY_VOLUME, "mountPath": TEMPORARY_PATH},
            {"name": MEMORY_VOLUME, "mountPath": MEMORY_PATH},
            *files_mounts(spec.model),
            *(spec.model.volume_mounts or ()),
        ],
        "startupProbe": admin_probe(
            sidecar_api.MODEL_STARTUP,
            periodSeconds=_STARTUP_PERIOD_SECONDS,
            failureThreshold=startup,
        ),
        # A minute of dead verdicts: while the sidecar itself restarts nobody answers, and that
        # must not cost a loaded model. A model known to be dead has nothing left to drain.
        "livenessProbe": admin_probe(
            sidecar_api.MODEL_LIVE,
            periodSeconds=10,
            failureThreshold=6,
            terminationGracePeriodSeconds=5,
        ),
        # Sidecars are told to stop only after this container ended: without the hook the model
        # would be gone while requests still wait for it. It only waits: the sidecar's own hook,
        # which begins at the same time, has the token.
        "lifecycle": {"preStop": {"httpGet": {"path": sidecar_api.DRAINED, "port": ADMIN_PORT}}},
    }
    given = {
        "command": list(spec.model.command),
        "args": list(spec.model.args),
        "envFrom": spec.model.env_from,
    }
    container |= {name: value for name, value in given.items() if value}
    if spec.model.protocol is not None:
        port = effective.model_port(spec)
        container["ports"] = [{"name": "model", "containerPort": port, "protocol": "TCP"}]
    return container


def _variables(model: Model, spec: Spec, pinned: PinnedBatching) -> dict[str, str]:
    given = dict(spec.model.env)
    if spec.model.handler is None:
        return given
    settings = ModelServerSettings(
        model_name=model.key.name,
        model_socket=SOCKET_PATH,
        handler=spec.model.handler,
        source=source_to_json(source_in_pod(spec.model.source)),
        parameters=spec.model.parameters,
        trust=spec.model.trust,
        max_batch_size=pinned.max_batch_size,
        idempotent=spec.model.idempotent,
        accelerator=AcceleratorNeed.NONE if spec.accelerator is None else AcceleratorNeed.REQUIRED,
        cache_folder=CACHE_PATH,
    )
    usual = _ACCOUNT | (_ALL_IS_FETCHED if fetched_repository(spec.model) else {})
    # Cache and account are the user's to change, what the sidecar relies on is not.
    own = {name: value for name, value in given.items() if not name.startswith(PREFIX)}
    return usual | own | to_environment(settings)
