"""What the operator renders of a BatchedModel's `spec`, without a cluster."""

from typing import Any

from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_operator import render
from batchedmodel_operator.observed.state import Model, model_from
from batchedmodel_operator.rollout import Mode
from support.operator_world import IMAGES, manifest

PINNED = render.PinnedBatching(max_batch_size=16, drain_timeout_seconds=40, max_queue_size=2048)


def read_model(spec: dict[str, Any]) -> tuple[Model, Spec]:
    body = manifest(spec)
    body["metadata"] |= {"uid": "6a", "generation": 1}
    model = model_from(body)
    assert model.spec is not None, model.mistakes
    return model, model.spec


def deployment_of(spec: dict[str, Any], mode: Mode = Mode.SURGE) -> dict[str, Any]:
    model, read = read_model(spec)
    template = render.pod_template(model, read, IMAGES, PINNED)
    return render.deployment(model, read, template, mode=mode, replicas=1)


def pod_of(spec: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = deployment_of(spec)["spec"]["template"]["spec"]
    return pod


def containers_of(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = pod_of(spec)
    batcher, (model,) = pod["initContainers"][-1], pod["containers"]
    return batcher, model


def fetch_of(spec: dict[str, Any]) -> dict[str, Any]:
    """The container that fetches, which runs before all others."""
    first, batcher = pod_of(spec)["initContainers"]
    assert batcher["name"] == "batcher"
    found: dict[str, Any] = first
    return found


def from_hub(**more: Any) -> dict[str, Any]:
    return {"model": {"handler": "hf", "source": {"huggingFace": {"repo": "a/b", **more}}}}


def mounts_of(container: dict[str, Any]) -> dict[str, Any]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def volumes_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {volume["name"]: volume for volume in pod_of(spec)["volumes"]}


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def revision_of(spec: dict[str, Any]) -> str:
    return render.revision(*read_model(spec), IMAGES)
