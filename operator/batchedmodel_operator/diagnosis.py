"""Reads out of pods and Deployments why a model does not serve, in reasons of ours. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batchedmodel_contract.kubernetes_names import FETCH_CONTAINER, MODEL_CONTAINER
from batchedmodel_contract.server_api import ModelState
from batchedmodel_contract.spec import Spec
from batchedmodel_operator.observed import Child, Pod, condition
from batchedmodel_operator.ports import Body


class Trouble(StrEnum):
    """Why pods do not come up; the worst first."""

    QUOTA_EXCEEDED = "QuotaExceeded"
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    MISSING_SERVICE_ACCOUNT = "MissingServiceAccount"
    MISSING_SECRET = "MissingSecret"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    FETCH_FAILED = "FetchFailed"
    MODEL_FAILED = "ModelFailed"
    OUT_OF_MEMORY = "OOMKilled"
    CRASH_LOOPING = "CrashLooping"
    INSUFFICIENT_ACCELERATOR = "InsufficientAccelerator"
    UNSCHEDULABLE = "Unschedulable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A trouble and the sentence about it."""

    trouble: Trouble
    message: str


_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_PULL_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""Those in which the registry was asked."""
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_FAILED: Final = f"the model is {ModelState.FAILED}"
"""How a sidecar begins its answer when the model server has given up."""
_NOT_SAID: Final = "ended without a word to the cluster; its log has more"
_CRASHES_THAT_COUNT: Final = 2
"""A process that fails once may be unlucky; a reason that comes and goes would help nobody."""


def diagnose(
    spec: Spec | None,
    deployment: Child | None,
    pods: tuple[Pod, ...],
    startups: Mapping[str, str],
) -> Diagnosis | None:
    """What keeps these pods from serving, or None when nothing is known but that they start.

    `startups`: by uid of a pod, what its sidecar says of the model's start.
    """
    found = [*_of_deployment(deployment)]
    for pod in pods:
        if not pod.deleting and not pod.ready:
            found.extend(_of_pod(spec, pod))
            found.extend(_of_model(pod, startups.get(pod.uid, "")))
    return min(found, key=lambda one: list(Trouble).index(one.trouble), default=None)


def _of_deployment(deployment: Child | None) -> Iterator[Diagnosis]:
    if deployment is None:
        return
    failure = condition(deployment.body.get("status") or {}, "ReplicaFailure")
    if failure.get("status") == "True":
        message = failure.get("message") or "the API server refused a pod"
        yield Diagnosis(trouble=refused_pod(message), message=message)


def refused_pod(message: str) -> Trouble:
    """Why the API server would not have a pod; it says so in a sentence only."""
    if "exceeded quota" in message or "failed quota" in message:
        return Trouble.QUOTA_EXCEEDED
    if "serviceaccount" in message and "not found" in message:
        return Trouble.MISSING_SERVICE_ACCOUNT
    return Trouble.INVALID_POD_TEMPLATE


def _of_pod(spec: Spec | None, pod: Pod) -> Iterator[Diagnosis]:
    status = pod.body.get("status") or {}
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        yield _unscheduled(spec, pod, scheduled.get("message") or "")
    secrets = spec.pod.image_pull_secrets if spec is not None else ()
    for part in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(part) or ():
            yield from _of_container(pod, container, secrets)


def _of_model(pod: Pod, said: str) -> Iterator[Diagnosis]:
    state, _, why = said.partition(": ")
    if state == _FAILED:
        text = f"pod {pod.name}: {why or 'the model cannot be loaded'}"
        yield Diagnosis(trouble=Trouble.MODEL_FAILED, message=text)


def _unscheduled(spec: Spec | None, pod: Pod, message: str) -> Diagnosis:
    resource = spec.accelerator.resource if spec is not None and spec.accelerator else None
    lacking = resource is not None and f"Insufficient {resource}" in message
    trouble = Trouble.INSUFFICIENT_ACCELERATOR if lacking else Trouble.UNSCHEDULABLE
    return Diagnosis(trouble=trouble, message=f"pod {pod.name}: {message}")


def _of_container(pod: Pod, container: Body, pull_secrets: tuple[str, ...]) -> Iterator[Diagnosis]:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    where = f"pod {pod.name}, container {container['name']}"
    if reason in _IMAGE_REASONS:
        text = message or f"{reason}: {container.get('image', '')}"
        if reason in _PULL_REASONS and pull_secrets:
            # Of one that is missing the kubelet tells in an event only, and reading the events of
            # all namespaces is more than the operator should be allowed for it.
            text += (
                f"; pulled with the image pull secrets {', '.join(pull_secrets)}: do they exist?"
            )
        yield Diagnosis(trouble=Trouble.IMAGE_PULL_FAILED, message=f"{where}: {text}")
    elif reason in _CONFIG_REASONS:
        missing = "secret" in message and "not found" in message
        trouble = Trouble.MISSING_SECRET if missing else Trouble.CONTAINER_CONFIG_ERROR
        yield Diagnosis(trouble=trouble, message=f"{where}: {message or reason}")
    elif not container.get("ready"):
        yield from _of_crashes(container, where, looping=reason == "CrashLoopBackOff")


def _of_crashes(container: Body, where: str, *, looping: bool) -> Iterator[Diagnosis]:
    ended = (
        (container.get("lastState") or {}).get("terminated")
        or (container.get("state") or {}).get("terminated")
        or {}
    )
    restarts = container.get("restartCount") or 0
    if ended.get("reason") == "OOMKilled":
        what = "the model" if container["name"] == MODEL_CONTAINER else "the process"
        text = f"{where}: {what} needs more memory than its limit allows"
        yield Diagnosis(trouble=Trouble.OUT_OF_MEMORY, message=text)
    elif container["name"] == FETCH_CONTAINER and ended:
        # It says why, and it is tried again; once is enough to know.
        text = f"{where}: {(ended.get('message') or _NOT_SAID).strip()}"
        yield Diagnosis(trouble=Trouble.FETCH_FAILED, message=text)
    elif looping or restarts >= _CRASHES_THAT_COUNT:
        code = ended.get("exitCode", "unknown")
        detail = f": {ended['message'].strip()}" if ended.get("message") else ""
        # Restart counts would make every crash a new message, and that a write.
        text = f"{where}: ends again and again, last with exit code {code}{detail}"
        yield Diagnosis(trouble=Trouble.CRASH_LOOPING, message=text)
