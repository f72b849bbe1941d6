"""The `spec` of a BatchedModel manifest: its fields, defaults and rules.

Behind them the values in force of fields whose default depends on others, as functions of single
values, because the autoscaler reads no whole spec. The limit of the queue is in `pod_settings`.

`batchedmodel run` reads a file with it, the operator a resource. The custom resource and the
README's table are held to these declarations by tests.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from batchedmodel_contract.manifest.upstream import OUTPUT_NAMES, PASS_PATHS, ServerProtocol
from batchedmodel_contract.processes.logs import LogLevel
from batchedmodel_contract.schema.reading import section, setting
from batchedmodel_contract.schema.rules import ANY_TEXT, Choice, Text, Truth, Whole, object_name
from batchedmodel_contract.schema.shapes import TEXT_MAP, ListOf, MapOf
from batchedmodel_kube.manifest.adapters import Adapters
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.effect import Effect
from batchedmodel_kube.manifest.generation import Generation
from batchedmodel_kube.manifest.source import Source
from batchedmodel_kube.manifest.workload import (
    DEFAULT_TARGET_QUEUE_WAIT_MILLISECONDS,
    DEFAULT_TARGET_UTILIZATION_PERCENT,
    Accelerator,
    Autoscaling,
    Disruption,
    Pod,
    Rollout,
    Security,
    Service,
    UpgradeMode,
)
from batchedmodel_kube.schema.kubernetes_types import ENV_FROM, SECURITY_CONTEXT, VOLUME_MOUNT
from batchedmodel_kube.schema.shapes import QUANTITIES, NamedEntries, Texts

# NUL would end the value of a variable early.
_VALUE: Final = replace(ANY_TEXT, pattern=r"[^\x00]*", form="a text without the character NUL")
_HANDLER_NAME: Final = Text(
    pattern=r"hf|simulated|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
    form="hf, simulated or a class such as my_package.module:Class",
)
DEFAULT_MODEL_PORT: Final = 8080
CLASS_NAME: Final = object_name("a name of lower-case letters, digits, '-' and '.'")
"""Of a BatchedModelClass."""
_VARIABLE: Final = Text(pattern="[ -<>-~]+", form="the name of a variable: ASCII without '='")
DRAIN_MARGIN_SECONDS: Final = 5
"""How much longer a drain may take than a request."""


class PullPolicy(StrEnum):
    """When a node fetches an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a container asks for and may use at most."""

    requests: tuple[tuple[str, str], ...] = setting(QUANTITIES, default=())
    """What is reserved for the container; of cpu and memory a little when nothing is said."""
    limits: tuple[tuple[str, str], ...] = setting(QUANTITIES, default=())
    """What the container may use at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What runs a batch: a handler of our model server, or a container of one's own."""

    handler: str | None = setting(_HANDLER_NAME)
    """How our server runs the model: `hf` serves a transformers checkpoint, `simulated` takes time
    instead of computing, a class is code: installed, or in a file (handler.py:Class)."""
    source: Source | None = section(Source)
    """Where the model's files come from."""
    image: str | None = setting(
        Text(pattern=r"\S+", form="an image reference"),
        effective="the chart's model server image when `handler` is set",
    )
    """Container image, used on Kubernetes."""
    port: int | None = setting(
        Whole(minimum=1024, maximum=65535), effective=f"{DEFAULT_MODEL_PORT} when `protocol` is set"
    )
    """Port on which a container of one's own listens."""
    image_pull_policy: PullPolicy | None = setting(
        Choice(of=PullPolicy), effective="what the chart says"
    )
    """When nodes fetch the image."""
    command: tuple[str, ...] = setting(Texts(), default=())
    """What a container of one's own runs; absent: what its image says."""
    args: tuple[str, ...] = setting(Texts(), default=())
    """Arguments of a container of one's own."""
    protocol: ServerProtocol | None = setting(Choice(of=ServerProtocol))
    """What a container of one's own speaks: OIP v2, KServe v1, or OpenAI's embeddings, chat and
    completions."""
    replicated_outputs: tuple[str, ...] = setting(OUTPUT_NAMES, default=())
    """Outputs of a server of protocol V2 that have no batch dimension: each caller of a batch gets
    them whole."""
    pass_paths: tuple[str, ...] = setting(PASS_PATHS, default=())
    """Paths that are passed on to a container of one's own beside its protocol's inference,
    metadata and health; /* at the end means all below."""
    idempotent: bool = setting(Truth(), default=True)
    """Whether a row may be run again if its batch failed."""
    trust_remote_code: bool = setting(Truth(), default=False)
    """Whether code in the model's files, pickles too, may run."""
    parameters: tuple[tuple[str, str], ...] = setting(TEXT_MAP, default=())
    """Parameters of the handler, strings by name."""
    env: tuple[tuple[str, str], ...] = setting(
        MapOf(each=_VALUE, called="strings by name", keys=_VARIABLE), default=()
    )
    """Environment variables of the model container, by name."""
    env_from: list[object] | None = setting(
        ListOf(each=ENV_FROM, form="a list of core/v1 sources of environment variables")
    )
    """ConfigMaps and Secrets whose entries are variables of the model container."""
    resources: Resources = section(Resources, default=Resources())
    """Resources of the model container."""
    volume_mounts: list[object] | None = setting(
        NamedEntries(
            each=VOLUME_MOUNT, form="a list of core/v1 volume mounts", at_most=64, key="mountPath"
        )
    )
    """Where the model container sees the volumes of `pod.volumes`."""
    security_context: dict[str, object] | None = setting(SECURITY_CONTEXT)
    """Security context of the model container; its fields stand above those of `security.profile`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """The batching sidecar's container."""

    image: str | None = setting(Text(pattern=r"\S+", form="an image reference"))
    """Image of the sidecar, of the operator's own version. Absent: the chart's."""
    upgrade: UpgradeMode | None = setting(
        Choice(of=UpgradeMode), effective="what the chart says", edit=Effect.MAY_ROLL_PODS
    )
    """Whether pods are replaced for the images of another operator, the sidecar's and the model
    server's: `Pinned` waits for an edit, `Rolling` does it when the model's turn comes."""
    resources: Resources = section(Resources, default=Resources())
    """Resources of the sidecar."""
    log_level: LogLevel = setting(Choice(of=LogLevel), default=LogLevel.INFO)
    """How much the sidecar logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """How long a pod may take until its model is ready."""

    timeout_seconds: int = setting(Whole(minimum=10, maximum=14_400), default=1200)
    """A model that is not ready by then is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How a pod ends without losing a request."""

    delay_seconds: int = setting(Whole(minimum=0, maximum=120), default=5)
    """A pod that is told to stop accepts requests until none has come for so long, but at most 3
    times as long: callers hear late that its address is gone."""
    timeout_seconds: int | None = setting(
        Whole(minimum=1, maximum=3600),
        effective=f"`requestTimeoutSeconds` + {DRAIN_MARGIN_SECONDS}",
    )
    """How long accepted requests may take after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The whole `spec`."""

    class_name: str | None = setting(CLASS_NAME, edit=Effect.NO_EFFECT)
    """BatchedModelClass whose values hold where this manifest says nothing itself."""
    suspend: bool = setting(Truth(), default=False, edit=Effect.SCALES_PODS)
    """Whether the model rests: no pods, while its objects and its URL stay."""
    replicas: int | None = setting(
        Whole(minimum=0, maximum=1000),
        effective="1 without `autoscaling`",
        edit=Effect.SCALES_PODS,
    )
    """Pods, when nothing scales them."""
    model: Model = section(Model, required=True, edit=Effect.ROLLS_PODS)
    """What runs a batch."""
    batching: Batching = section(Batching, default=Batching(), edit=Effect.EFFECTIVE_AT_ONCE)
    """How requests share a forward pass."""
    generation: Generation | None = section(Generation, edit=Effect.EFFECTIVE_AT_ONCE)
    """How text is generated, chat and completions: by a handler's model, or by a server of protocol
    OpenAI. Absent: limits are the model server's own or learnt, and there are no targets."""
    adapters: Adapters | None = section(Adapters, edit=Effect.ROLLS_PODS)
    """Fine-tunings (LoRA) of the model that are served beside it, in the same batches. Absent:
    none."""
    accelerator: Accelerator | None = section(Accelerator, edit=Effect.ROLLS_PODS)
    """The device that each pod needs, as an extended resource; claims of dynamic resource
    allocation are not made. Absent: none."""
    autoscaling: Autoscaling | None = section(Autoscaling, edit=Effect.CHANGES_AUTOSCALING)
    """How the number of pods follows the load; absent: it does not."""
    sidecar: Sidecar = section(Sidecar, default=Sidecar(), edit=Effect.ROLLS_PODS)
    """The batching sidecar."""
    startup: Startup = section(Startup, default=Startup(), edit=Effect.ROLLS_PODS)
    """How a pod begins."""
    drain: Drain = section(Drain, default=Drain(), edit=Effect.ROLLS_PODS)
    """How a pod ends."""
    rollout: Rollout = section(Rollout, default=Rollout(), edit=Effect.CHANGES_ROLLOUT)
    """How pods are replaced by those of a new revision."""
    service: Service = section(Service, default=Service(), edit=Effect.CHANGES_SERVICE)
    """The Service in front."""
    disruption: Disruption = section(
        Disruption, default=Disruption(), edit=Effect.CHANGES_DISRUPTION
    )
    """What those may do to pods who drain nodes."""
    security: Security = section(Security, default=Security(), edit=Effect.ROLLS_PODS)
    """What the pods' containers may do."""
    pod: Pod = section(Pod, default=Pod(), edit=Effect.ROLLS_PODS)
    """Where pods run and what they carry."""


def drain_timeout_seconds(given: int | None, *, request_timeout_seconds: int) -> int:
    """How long accepted requests may take once a pod was told to stop."""
    return request_timeout_seconds + DRAIN_MARGIN_SECONDS if given is None else given


def target_utilization_percent(given: int | None) -> int:
    """Share that is to be used, for the metrics `Load` and `CPU`."""
    return DEFAULT_TARGET_UTILIZATION_PERCENT if given is None else given


def target_queue_length(given: int | None, *, max_batch_size: int) -> int:
    """Rows that may wait per pod, for metric `QueueLength`."""
    return max_batch_size if given is None else given


def target_concurrency(
    given: int | None, *, max_batch_size: int, max_concurrent_batches: int
) -> int:
    """Rows that may wait or be under way per pod, for metric `Concurrency`.

    By default a full batch for each that may run, which keeps a pod busy by 70 to 85 %.
    """
    return max_batch_size * max_concurrent_batches if given is None else given


def target_queue_time_milliseconds(
    given: int | None, *, target_latency_milliseconds: int | None
) -> int:
    """How long a row may wait on average, for metric `QueueTime`."""
    if given is not None:
        return given
    if target_latency_milliseconds is not None:
        return max(1, target_latency_milliseconds // 2)
    return DEFAULT_TARGET_QUEUE_WAIT_MILLISECONDS
