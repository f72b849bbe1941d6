"""The `spec` of a BatchedModel manifest: its fields, defaults and rules, and nothing else.

`batchedmodel run` reads a file with it, the operator a resource. The custom resource and the
README's table are held to these declarations by tests.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batchedmodel_contract.reading import section, setting
from batchedmodel_contract.rules import AscendingWholes, Choice, Text, TextMap, Whole

MAX_LENGTH: Final = 1_048_576
MAX_BATCH_SIZE: Final = 4096
DEFAULT_MODEL_PORT: Final = 8080


class PolicyName(StrEnum):
    """How batches are formed."""

    GREEDY = "Greedy"
    """Whatever waits when the model is free; the first request never waits for company."""
    WINDOW = "Window"
    """A batch leaves when it is full or when its oldest member has waited long enough."""


class ServerProtocol(StrEnum):
    """What a container of one's own speaks."""

    V2 = "V2"
    """Open Inference Protocol v2 over HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace:
    """A model repository on a Hugging Face hub."""

    repo: str = setting(
        "repo",
        Text(
            pattern=r"[\w.-]+(/[\w.-]+)?",
            form="a repository name such as sentence-transformers/all-MiniLM-L6-v2",
        ),
        "Repository that holds the model's files.",
        required=True,
    )
    revision: str = setting(
        "revision",
        Text(pattern=r"[\w./-]+", form="a branch, tag or commit"),
        "Branch, tag or commit. A commit makes the service reproducible.",
        default="main",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the model's files come from; exactly one of the fields."""

    path: str | None = setting(
        "path", Text(at_most=4096), "Folder with the model's files; relative to the manifest."
    )
    python_package: str | None = setting(
        "pythonPackage",
        Text(
            pattern=r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*",
            form="an importable name such as my_models.minilm",
        ),
        "Installed package that carries the files: its get_model_path() or else its own folder.",
    )
    hugging_face: HuggingFace | None = section(
        "huggingFace", HuggingFace, "Repository to download once and keep in the cache."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What runs a batch: a handler of our model server, or a container of one's own."""

    handler: str | None = setting(
        "handler",
        Text(
            pattern=r"hf|simulated|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
            form="hf, simulated or a class such as my_package.module:Class",
        ),
        "How our model server runs the model: `hf` serves a transformers checkpoint without code, "
        "`simulated` takes time instead of computing, a class is code of one's own.",
    )
    source: Source | None = section("source", Source, "Where the model's files come from.")
    image: str | None = setting(
        "image",
        Text(pattern=r"\S+", form="an image reference"),
        "Container image, used on Kubernetes.",
        effective="the chart's model server image when `handler` is set",
    )
    port: int | None = setting(
        "port",
        Whole(minimum=1024, maximum=65535),
        "Port on which a container of one's own listens.",
        effective=f"{DEFAULT_MODEL_PORT} when `protocol` is set",
    )
    protocol: ServerProtocol | None = setting(
        "protocol", Choice(of=ServerProtocol), "What a container of one's own speaks."
    )
    parameters: tuple[tuple[str, str], ...] = setting(
        "parameters", TextMap(), "Parameters of the handler, strings by name.", default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How requests share a forward pass."""

    policy: PolicyName = setting(
        "policy",
        Choice(of=PolicyName),
        "`Greedy` takes whatever waits when the model is free; `Window` waits for a full batch "
        "or for `maxWaitMilliseconds`.",
        default=PolicyName.GREEDY,
    )
    max_batch_size: int = setting(
        "maxBatchSize", Whole(minimum=1, maximum=MAX_BATCH_SIZE), "Rows in one batch.", default=32
    )
    max_wait_milliseconds: int = setting(
        "maxWaitMilliseconds",
        Whole(minimum=0, maximum=60_000),
        "Longest time that a row is held back for company, from its arrival on; "
        "`Greedy` holds none.",
        default=5,
    )
    max_queue_size: int | None = setting(
        "maxQueueSize",
        Whole(minimum=1, maximum=1_000_000),
        "Rows that may wait; more are refused with 429.",
        effective="the larger of 2048 and 16 x `maxBatchSize`",
    )
    request_timeout_seconds: int = setting(
        "requestTimeoutSeconds",
        Whole(minimum=1, maximum=3600),
        "A request that is not answered by then gets 504.",
        default=30,
    )
    length_buckets: tuple[int, ...] = setting(
        "lengthBuckets",
        AscendingWholes(each=Whole(minimum=1, maximum=MAX_LENGTH), at_most=64),
        "Upper edges of length classes: only rows of one class share a batch. Empty: one class.",
        default=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The whole `spec`."""

    model: Model = section("model", Model, "What runs a batch.", required=True)
    batching: Batching = section(
        "batching", Batching, "How requests share a forward pass.", default=Batching()
    )
