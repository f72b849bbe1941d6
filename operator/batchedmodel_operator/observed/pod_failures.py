"""Reads out of pods and Deployments why a model does not serve, in reasons of ours. Pure.

A container's last words go into conditions, Events and the operator's log, which more people read
than the pod's own log. A server that fails over its configuration likes to print it. So whatever
looks like a token or a password is hidden.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import Final, Self

from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import BATCHER_CONTAINER, FETCH_CONTAINER, MODEL_CONTAINER
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.observed.log_texts import as_text
from batchedmodel_operator.observed.state import Child, Pod, condition


class Stage(Enum):
    """How far a pod came that does not serve."""

    REFUSED = auto()
    """The API server takes no such pod."""
    PREPARING = auto()
    """Its image, files or configuration are missing. Mostly somebody else is down, and another
    revision would fare no better."""
    STARTED = auto()
    """A container ran and failed: only another revision mends it."""
    UNPLACED = auto()
    """It has no node, which says nothing of the model."""


class PodFailureReason(StrEnum):
    """Why pods do not come up, and at which stage; the worst first."""

    QUOTA_EXCEEDED = "QuotaExceeded", Stage.REFUSED
    INVALID_POD_TEMPLATE = "InvalidPodTemplate", Stage.REFUSED
    MISSING_SERVICE_ACCOUNT = "MissingServiceAccount", Stage.REFUSED
    MISSING_SECRET = "MissingSecret", Stage.PREPARING
    CONTAINER_CONFIG_ERROR = "ContainerConfigError", Stage.PREPARING
    IMAGE_PULL_FAILED = "ImagePullFailed", Stage.PREPARING
    FETCH_FAILED = "FetchFailed", Stage.PREPARING
    MODEL_FAILED = "ModelFailed", Stage.STARTED
    OUT_OF_MEMORY = "OOMKilled", Stage.STARTED
    HEALTH_CHECK_FAILING = "HealthCheckFailing", Stage.STARTED
    CRASH_LOOPING = "CrashLooping", Stage.STARTED
    INSUFFICIENT_ACCELERATOR = "InsufficientAccelerator", Stage.UNPLACED
    VOLUME_NOT_BOUND = "VolumeNotBound", Stage.UNPLACED
    CLAIM_NOT_ALLOCATED = "ClaimNotAllocated", Stage.UNPLACED
    UNSCHEDULABLE = "Unschedulable", Stage.UNPLACED
    NODE_AFFINITY_MISMATCH = "NodeAffinityMismatch", Stage.UNPLACED
    TAINT_NOT_TOLERATED = "TaintNotTolerated", Stage.UNPLACED

    stage: Stage

    def __new__(cls, value: str, stage: Stage) -> Self:
        """A string with its stage."""
        member = str.__new__(cls, value)
        member._value_, member.stage = value, stage
        return member


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A trouble and the sentence about it."""

    trouble: PodFailureReason
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
_REFUSALS: Final = (
    ("persistentvolumeclaim", PodFailureReason.VOLUME_NOT_BOUND),
    ("persistent volume", PodFailureReason.VOLUME_NOT_BOUND),
    ("volume node affinity", PodFailureReason.VOLUME_NOT_BOUND),
    ("resourceclaim", PodFailureReason.CLAIM_NOT_ALLOCATED),
    ("allocate all claims", PodFailureReason.CLAIM_NOT_ALLOCATED),
    ("insufficient ", PodFailureReason.UNSCHEDULABLE),
    ("node affinity/selector", PodFailureReason.NODE_AFFINITY_MISMATCH),
    ("untolerated taint", PodFailureReason.TAINT_NOT_TOLERATED),
)
"""What a scheduler says of nodes, in small letters. It names each node's reason: those of a node
that would nearly do come first, and control planes have taints everywhere."""
_PULL_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""Those for which the registry was asked."""
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_FAILED: Final = f"the model is {ModelState.FAILED}"
"""How a sidecar begins its answer when the model server has given up."""
_NOT_SAID: Final = "ended without a word to the cluster; its log has more"
_PROBED: Final = (BATCHER_CONTAINER, MODEL_CONTAINER)
_SIGTERM: Final = 143
"""The exit code. Of a pod that stays, hardly anybody but the kubelet ends a container so."""
_SIGKILL: Final = 137
"""The kubelet's too, of what does not end by the other, and that of a node without memory."""
_CRASHES_THAT_COUNT: Final = 2
"""One failure may be bad luck, and a reason that comes and goes helps nobody."""

HIDDEN: Final = "***"

_WORD: Final = r"""[^\s"'`,;&<>)\]}]"""
_START: Final = r"(?<![\w-])"
"""Of a name as a whole: tried at each letter, a long name would be read again and again."""
_SECRET: Final = (
    r"(?:token(?!i[sz])|secret|passwo?r?d|passphrase|pwd|api[_-]?key|access[_-]?key|credential)"
)
"""In the name of a value that nobody should see; a tokenizer has none."""
_QUOTED: Final = rf"""(\\?+["'])(?={_WORD})(?:(?!\2)(?:\\.|[^\\]))+"""
"""The second group is the opening quote, which JSON within JSON has behind a backslash."""
_COOKIE: Final = r"[\w.-]++="


def _with_name_and_password(found: re.Match[str]) -> str:
    """What stands for `Basic WORD`: "basic authentication" is words, and stays."""
    scheme, word = found.groups()
    try:
        pair = b64decode(word[: len(word) // 4 * 4]).decode()
    except ValueError:
        return found[0]
    return f"{scheme} {HIDDEN}" if ":" in pair and pair.isprintable() else found[0]


# A pod chooses the text, so no form may go back over what it has read.
_FORMS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL), HIDDEN),
    # https://user:password@host, with or without the user
    (re.compile(r"(?<=://)[^\s/@:]*+:[^\s/]*@"), rf"{HIDDEN}@"),
    # Authorization: Bearer ..., Basic ...
    (re.compile(rf"\b(bearer|basic) ++(?=\S*\d)({_WORD}{{8,}}+)", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(basic) ++([\w+/]{8,}+={0,2}+)", re.IGNORECASE), _with_name_and_password),
    # HF_TOKEN=..., "api_key": "...", ?access_token=...
    (
        re.compile(
            rf"""({_START}(?=[\w-]*?{_SECRET})[\w-]++\\?+["']?+\s*+[=:]\s*+)"""
            rf"(?:{_QUOTED}|{_WORD}++)",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1\2{HIDDEN}",
    ),
    # --token hf1..., ['--password', '...']; but --max-tokens 512, and "--token is required"
    (
        re.compile(
            rf"""({_START}--(?=[\w-]*?{_SECRET}(?!s\b))[\w-]++["']?+,?+\s++)"""
            rf"(?:(?!.-){_QUOTED}|(?=[a-z]*+[\d+=@#$%^*~]){_WORD}++)",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1\2{HIDDEN}",
    ),
    # Cookie: session=...; theme=...
    (
        re.compile(
            rf"""({_START}(?:set-)?cookie\\?+["']?+\s*+[=:]\s*+)(?=\\?+["']?+{_COOKIE})"""
            rf"(?:{_QUOTED}|[^\s;]++(?:;[ ]?+{_COOKIE}[^\s;]*+)*)",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1\2{HIDDEN}",
    ),
    # What signs a URL; Go's JSON writes its & as \u0026.
    (
        re.compile(rf"((?<=[?&;\\])(?:[\w-]*?signature|(?:u0026)?sig)=){_WORD}++", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    # Tokens that say by themselves what they are, and below them JSON web tokens.
    (
        re.compile(
            r"\b(?:hf_\w{8,}|gh[a-z]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
            r"|AKIA[0-9A-Z]{12,})"
        ),
        HIDDEN,
    ),
    (
        re.compile(rf"{_START}(?=[\w-]*?\beyJ[\w-]{{4}})[\w-]++\.[\w-]++\.[\w-]*+"),
        HIDDEN,
    ),
)


def diagnose(
    spec: Spec | None,
    deployment: Child | None,
    pods: tuple[Pod, ...],
    startups: Mapping[str, str],
) -> Diagnosis | None:
    """What keeps these pods from serving, or None when nothing is known but that they start.

    `startups`: by uid of a pod, what its sidecar says of the model's start.
    """
    return worst((refused_for(deployment), *_of_pods(spec, pods, startups)))


def failed_start(
    spec: Spec | None, pods: tuple[Pod, ...], startups: Mapping[str, str]
) -> Diagnosis | None:
    """Why a container of these pods started and failed; None for pods that only wait."""
    found = _of_pods(spec, pods, startups)
    return worst(one for one in found if one.trouble.stage is Stage.STARTED)


def unscheduled(spec: Spec | None, pod: Pod) -> Diagnosis | None:
    """Why a pod has no node, or None when it has one or nobody has looked for one yet."""
    scheduled = condition(pod.body.get("status") or {}, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    message = scheduled.get("message") or ""
    return Diagnosis(trouble=_refusal(spec, message), message=f"pod {pod.name}: {message}")


def lacks_accelerator_since(spec: Spec | None, pod: Pod) -> datetime | None:
    """Since when a pod has had no node, if by now it is because none has an accelerator for it."""
    found = unscheduled(spec, pod)
    if found is None or found.trouble is not PodFailureReason.INSUFFICIENT_ACCELERATOR:
        return None
    scheduled = condition(pod.body["status"], "PodScheduled")
    # Some schedulers leave out since when.
    since = scheduled.get("lastTransitionTime") or pod.body["metadata"]["creationTimestamp"]
    try:
        return datetime.fromisoformat(since)
    except (ValueError, TypeError):
        return None  # somebody wrote a time into the pod's status that is none


def worst(found: Iterable[Diagnosis | None]) -> Diagnosis | None:
    """The one that matters most, of equal ones the first, without what looks like a secret."""
    known = [one for one in found if one is not None]
    first = min(known, key=lambda one: list(PodFailureReason).index(one.trouble), default=None)
    return first and replace(first, message=redacted(first.message))


def redacted(text: str) -> str:
    """The text with `***` for whatever looks like a secret in it."""
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text


def refused_for(deployment: Child | None) -> Diagnosis | None:
    """Why the API server takes no pod of a Deployment, or None when it does."""
    if deployment is None:
        return None
    status = deployment.body.get("status") or {}
    failure = condition(status, "ReplicaFailure")
    asked = deployment.body["metadata"].get("generation", 0)
    # Before, it is about the pods that were asked for earlier.
    heard = status.get("observedGeneration", 0) >= asked
    if failure.get("status") != "True" or not heard:
        return None
    message = failure.get("message") or "the API server refused a pod"
    trouble = refused_pod(message)
    budget = (deployment.body["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    beside_old = status.get("updatedReplicas", 0) < status.get("replicas", 0)
    surges = beside_old and budget.get("maxSurge") not in (0, "0%")
    if trouble is PodFailureReason.QUOTA_EXCEEDED and surges:
        message = f"{message}; with spec.rollout.strategy: InPlace old pods make room for new ones"
    return Diagnosis(trouble=trouble, message=message)


def refused_pod(message: str) -> PodFailureReason:
    """Why the API server would not have a pod; it says so in a sentence only."""
    if "exceeded quota" in message:
        return PodFailureReason.QUOTA_EXCEEDED
    if "serviceaccount" in message and "not found" in message:
        return PodFailureReason.MISSING_SERVICE_ACCOUNT
    return PodFailureReason.INVALID_POD_TEMPLATE


def _of_pods(
    spec: Spec | None, pods: tuple[Pod, ...], startups: Mapping[str, str]
) -> Iterator[Diagnosis]:
    secrets = spec.pod.image_pull_secrets if spec is not None else ()
    for pod in pods:
        if pod.deleting or pod.ready:
            continue
        homeless = unscheduled(spec, pod)
        if homeless is not None:
            yield homeless
        status = pod.body.get("status") or {}
        given = (pod.body.get("spec") or {}).get("initContainers") or ()
        # Init containers that run on; all others have to end before the model starts.
        beside = {one["name"] for one in given if one.get("restartPolicy") == "Always"}
        for container in status.get("initContainerStatuses") or ():
            prepares = container["name"] not in beside
            yield from _of_container(pod, container, secrets, prepares=prepares)
        for container in status.get("containerStatuses") or ():
            yield from _of_container(pod, container, secrets, prepares=False)
        state, _, why = startups.get(pod.uid, "").partition(": ")
        if state == _FAILED:
            text = f"pod {pod.name}: {why or 'the model cannot be loaded'}"
            yield Diagnosis(trouble=PodFailureReason.MODEL_FAILED, message=text)


def _refusal(spec: Spec | None, message: str) -> PodFailureReason:
    resource = spec.accelerator.resource if spec is not None and spec.accelerator else None
    if resource is not None and f"Insufficient {resource}" in message:
        return PodFailureReason.INSUFFICIENT_ACCELERATOR
    said = message.lower()
    return next((one for words, one in _REFUSALS if words in said), PodFailureReason.UNSCHEDULABLE)


def _of_container(
    pod: Pod, container: Body, pull_secrets: tuple[str, ...], *, prepares: bool
) -> Iterator[Diagnosis]:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    where = f"pod {pod.name}, container {container['name']}"
    if reason in _IMAGE_REASONS:
        text = message or f"{reason}: {container.get('image', '')}"
        if reason in _PULL_REASONS and pull_secrets:
            # The kubelet tells of a missing one in an Event only, and the operator may not read the
            # Events of all namespaces.
            names = ", ".join(pull_secrets)
            text += f"; pulled with the image pull secrets {names}: do they exist?"
        yield Diagnosis(trouble=PodFailureReason.IMAGE_PULL_FAILED, message=f"{where}: {text}")
    elif reason in _CONFIG_REASONS:
        trouble = PodFailureReason.CONTAINER_CONFIG_ERROR
        if "secret" in message and "not found" in message:
            trouble = PodFailureReason.MISSING_SECRET
        yield Diagnosis(trouble=trouble, message=f"{where}: {message or reason}")
    elif not container.get("ready"):
        looping = reason == "CrashLoopBackOff"
        yield from _of_crashes(container, where, looping=looping, prepares=prepares)


def _of_crashes(
    container: Body, where: str, *, looping: bool, prepares: bool
) -> Iterator[Diagnosis]:
    ended = (
        (container.get("state") or {}).get("terminated")
        or (container.get("lastState") or {}).get("terminated")
        or {}
    )
    again = looping or (container.get("restartCount") or 0) >= _CRASHES_THAT_COUNT
    if ended.get("reason") == "OOMKilled":
        what = "the model" if container["name"] == MODEL_CONTAINER else "the process"
        text = f"{where}: {what} needs more memory than its limit allows"
        yield Diagnosis(trouble=PodFailureReason.OUT_OF_MEMORY, message=text)
    elif prepares and ended.get("exitCode") == 0:
        # Its work is done. It runs again where a node begins its pods anew.
        return
    elif container["name"] == FETCH_CONTAINER or (prepares and not again):
        # It brings what the model needs, and is tried again; once is enough to know.
        if ended or again:
            text = f"{where}: {as_text(ended.get('message') or _NOT_SAID)}"
            yield Diagnosis(trouble=PodFailureReason.FETCH_FAILED, message=text)
    elif again:
        code = ended.get("exitCode", "unknown")
        detail = f": {as_text(ended['message'])}" if ended.get("message") else ""
        # Restart counts would make every crash a new message, and that a write.
        why = f"ends again and again, last with exit code {code}"
        trouble = PodFailureReason.CRASH_LOOPING
        if container["name"] in _PROBED and code == _SIGTERM:
            why = "the kubelet ends it again and again (SIGTERM): mostly, a probe fails"
            trouble = PodFailureReason.HEALTH_CHECK_FAILING
        elif code == _SIGKILL:
            why = f"{why} (SIGKILL): a probe fails, or its node is out of memory"
        yield Diagnosis(trouble=trouble, message=f"{where}: {why}{detail}")
