"""What each process is told when it starts: environment variables, one record per process.

The operator and `batchedmodel run` write them with `to_environment`; the process reads them once
with `from_environment`. Numbers and mappings are JSON; an empty variable counts as absent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest, Mistake, shown
from batchedmodel_contract.manifest.adapters import MOST_SLOTS
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.manifest.spec import (
    MAX_BATCH_SIZE,
    MAX_LENGTH,
    OUTPUT_NAMES,
    PASS_PATHS,
    LogLevel,
    ServerProtocol,
)
from batchedmodel_contract.processes.listening import EVERY_ADDRESS
from batchedmodel_contract.processes.logs import LogFormat
from batchedmodel_contract.schema.reading import Section, as_in, declarations, read, setting
from batchedmodel_contract.schema.rules import Broken, Choice, Real, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import TEXT_MAP, MapOf

PREFIX: Final = "BATCHEDMODEL_"
"""What the names of all these variables begin with."""

HUB_FOLDER: Final = "hub"
"""What models from a hub lie in, below the cache folder; in a pod a volume of its own."""

EXIT_WRONG_SETTINGS: Final = 2
"""Exit status of a process that cannot use its settings; to start it again would not help."""
EXIT_CANNOT_LISTEN: Final = 3
"""Exit status of a process that cannot have its port or socket."""
EXIT_DEVICE_LOST: Final = 4
"""Exit status of the model server when only a new process can use the device again."""

UPSTREAM_PATTERN: Final = r"https?://[^/\s]+"
UPSTREAM_FORM: Final = "a URL such as http://127.0.0.1:8080 or https://models.example.com"
"""What the address of a server of one's own looks like."""

_MEBIBYTE: Final = 1_048_576
Settings = TypeVar("Settings")


class AcceleratorNeed(StrEnum):
    """What our model server does if torch finds no accelerator."""

    NONE = "None"
    """It computes on the CPU: the manifest asks for no accelerator."""
    WANTED = "Wanted"
    """It computes on the CPU and logs that as an error."""
    REQUIRED = "Required"
    """It fails: a pod that is many times slower than expected would be scaled out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """What the sidecar is told. Batch settings come from the watched folder instead."""

    model_name: str = setting(Text(), "Name that callers use.", required=True)
    model_socket: str = setting(
        Text(), "Unix socket of our model server; or else UPSTREAM_URL.", default=""
    )
    upstream_url: str = setting(
        Text(pattern=UPSTREAM_PATTERN, form=UPSTREAM_FORM),
        "Where a server of one's own listens; or else MODEL_SOCKET.",
        default="",
    )
    upstream_protocol: ServerProtocol = setting(
        Choice(of=ServerProtocol),
        "What the server at UPSTREAM_URL speaks.",
        default=ServerProtocol.V2,
    )
    replicated_outputs: tuple[str, ...] = setting(
        OUTPUT_NAMES,
        "Outputs without rows of the server at UPSTREAM_URL, as a JSON list.",
        default=(),
    )
    pass_paths: tuple[str, ...] = setting(
        PASS_PATHS,
        "What is passed on to UPSTREAM_URL beside its protocol's paths, as a JSON list.",
        default=(),
    )
    idempotent: bool = setting(
        Truth(), "Whether a row may be run again after its batch failed.", default=True
    )
    settings_folder: str = setting(
        Text(), "Folder that holds the batch settings; watched.", required=True
    )
    host: str = setting(
        Text(), "Address to listen on; `::` is every address, IPv4 too.", default=EVERY_ADDRESS
    )
    local_to: str = setting(
        Text(),
        "The host that is listened on, where callers are this machine's alone: 403 for a `Host` "
        "that is neither it nor loopback, and for an `Origin` that is not the `Host`. Empty: "
        "neither is looked at, as in a cluster.",
        default="",
    )
    port: int = setting(Whole(minimum=0, maximum=65535), "Port for callers.", default=8000)
    admin_port: int = setting(
        Whole(minimum=0, maximum=65535), "Port for probes, metrics, drain.", default=9090
    )
    token_file: str = setting(
        Text(),
        "Where to write what /drain, load and unload must be called with, made up at each start; "
        "empty: nobody may call them.",
        default="",
    )
    pod_uid: str = setting(
        Text(), "Uid of the pod, which every answer of the admin port names.", default=""
    )
    drain_delay_seconds: float = setting(
        Real(minimum=0, maximum=120),
        "A drain accepts requests until none has come for so long, or for three times as long.",
        default=0.0,
    )
    drain_timeout_seconds: float = setting(
        Real(minimum=0, maximum=3700),  # the longest time-out of a request, and some
        "How long a drain waits for accepted requests.",
        default=35.0,
    )
    adapter_header: str = setting(
        Text(),
        "Header that may name the adapter of a request; empty: the model has no adapters.",
        default="",
    )
    adapter_slots: int = setting(
        Whole(minimum=0, maximum=MOST_SLOTS),
        "Adapters that the device has at the same time, as metrics tell it.",
        default=0,
    )
    max_body_bytes: int = setting(
        Whole(minimum=1024, maximum=1024 * _MEBIBYTE),
        "Largest request body; larger ones are refused with 413. Large JSON bodies are bounded "
        "by what their values take as well: see BATCHEDMODEL_MAX_QUEUE_BYTES.",
        default=64 * _MEBIBYTE,
    )
    max_queue_bytes: int = setting(
        Whole(minimum=128 * 1024, maximum=1024 * 1024 * _MEBIBYTE),
        "Bytes that all callers together may make the process hold: bodies, as they came and as "
        "they were inflated, or their rows where these take more, until they are answered; what "
        "the values of a large JSON body take while it is read, which is 5 to 20 times its length "
        "for numbers; 48 KiB for each request that is not plain and small (more are refused with "
        "429, or with 413 where they never fit), and in up to half of it answers that nobody has "
        "read (then 503).",
        default=256 * _MEBIBYTE,
    )
    connection_age_seconds: float = setting(
        Real(minimum=1, maximum=86_400),
        "Mean age at which a caller's connection is closed after an answer, so that pooled "
        "connections reach added pods; +-20 % by connection.",
        default=60.0,
    )
    log_level: LogLevel = setting(Choice(of=LogLevel), "How much to log.", default=LogLevel.INFO)
    log_format: LogFormat = setting(
        Choice(of=LogFormat), "In which form to log.", default=LogFormat.TEXT
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerSettings:
    """What the model server is told."""

    model_name: str = setting(Text(), "Name of the model.", required=True)
    model_socket: str = setting(Text(), "Unix socket to serve.", required=True)
    handler: str = setting(Text(), "How to run the model.", required=True)
    source: str = setting(Text(at_most=65_536), "`spec.model.source` as JSON.", default="")
    parameters: tuple[tuple[str, str], ...] = setting(
        TEXT_MAP, "`spec.model.parameters` as JSON.", default=()
    )
    trust: bool = setting(
        Truth(), "Whether code among the model's files may be run.", default=False
    )
    max_batch_size: int = setting(
        Whole(minimum=1, maximum=MAX_BATCH_SIZE), "Largest batch to warm up.", default=32
    )
    idempotent: bool = as_in(SidecarSettings, "idempotent")
    accelerator: AcceleratorNeed = setting(
        Choice(of=AcceleratorNeed),
        "Whether the manifest asks for one, and whether the model fails without.",
        default=AcceleratorNeed.NONE,
    )
    kv_cache_bytes: int = setting(
        Whole(minimum=0),
        "Memory for keys and values of generated texts; 0: KV_CACHE_FRACTION says.",
        default=0,
    )
    kv_cache_fraction: float = setting(
        Real(minimum=0, maximum=1),
        "Share of the memory that the model leaves which keys and values take; 0: the server's.",
        default=0.0,
    )
    max_context_tokens: int = setting(
        Whole(minimum=0, maximum=MAX_LENGTH),
        "Tokens of a prompt and its text together; 0: as many as the model takes.",
        default=0,
    )
    adapters_folder: str = setting(
        Text(), "Folder that holds adapters.json; watched. Empty: no adapters.", default=""
    )
    adapters_online: bool = setting(
        Truth(),
        "Whether hubs are asked for adapters although HF_HUB_OFFLINE is set, which is for the "
        "model: its files were fetched before.",
        default=False,
    )
    cache_folder: str = setting(Text(), "Folder for downloaded models.", required=True)
    log_level: LogLevel = as_in(SidecarSettings, "log_level")
    log_format: LogFormat = as_in(SidecarSettings, "log_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """What the program is told that fetches a model's files before the model server starts."""

    source: str = setting(Text(at_most=65_536), "`spec.model.source` as JSON.", required=True)
    trust: bool = setting(Truth(), "Whether code and pickles are fetched as well.", default=False)
    cache_folder: str = as_in(ModelServerSettings, "cache_folder")
    report_file: str = setting(Text(), "Where to write why nothing could be fetched.", default="")
    log_level: LogLevel = as_in(SidecarSettings, "log_level")
    log_format: LogFormat = as_in(SidecarSettings, "log_format")


def from_environment(of: type[Settings], environ: Mapping[str, str]) -> Settings:
    """The settings of a process; raises `InvalidManifest` with every mistake by variable."""
    mistakes: list[Mistake] = []
    found: dict[str, object] = {}
    for field, declared in declarations(of):
        if isinstance(declared, Section):
            raise TypeError(f"{of.__name__}.{field.name}: a process setting cannot be a section")
        variable = PREFIX + field.name.upper()
        text = environ.get(variable, "")
        if not text:
            if declared.required:
                mistakes.append(Mistake(field=variable, rule="is required"))
            continue
        try:
            is_text = isinstance(declared.rule, Text | Choice)
            found[field.name] = declared.rule.read(text if is_text else json.loads(text))
        except (ValueError, RecursionError) as error:
            rule = str(error) if isinstance(error, Broken) else "is not JSON"
            mistakes.append(Mistake(field=variable, rule=rule, value=shown(text)))
    if mistakes:
        raise InvalidManifest(tuple(mistakes))
    return of(**found)


def to_environment(
    settings: SidecarSettings | ModelServerSettings | FetchSettings,
) -> dict[str, str]:
    """The variables that `from_environment` reads back to equal settings."""
    variables: dict[str, str] = {}
    for field, declared in declarations(type(settings)):
        value: Any = getattr(settings, field.name)
        if isinstance(declared, Section) or value in ("", ()):
            continue
        is_map = isinstance(declared.rule, MapOf)
        text = value if isinstance(value, str) else json.dumps(dict(value) if is_map else value)
        variables[PREFIX + field.name.upper()] = text
    return variables


def source_to_json(source: Source | None) -> str:
    """`spec.model.source` as one variable; empty when there is none.

    Tokens and volumes are left out: the pod mounts a volume and names its folder as the path.
    """
    if source is None:
        return ""
    hub = source.hugging_face
    given = {
        "path": source.path,
        "pythonPackage": source.python_package,
        "huggingFace": hub and {"repo": hub.repo, "revision": hub.revision},
    }
    return json.dumps({name: value for name, value in given.items() if value is not None})


def source_from_json(text: str) -> Source | None:
    """The source in a variable; raises `InvalidInput`."""
    if not text:
        return None
    mistakes: list[Mistake] = []
    try:
        source = read(Source, json.loads(text), "source", mistakes)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("source", "is not JSON", text) from error
    if source is None:
        raise InvalidInput("source", "; ".join(str(mistake) for mistake in mistakes))
    return source
