"""What each process is told when it starts: environment variables, one record per process.

The operator and `batchedmodel run` write them, by `batchedmodel_kube.manifest.pod_settings`; the
process reads them once with `from_environment`. Numbers and mappings are JSON; an empty variable
counts as absent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest, Mistake, shown
from batchedmodel_contract.manifest.adapters import MOST_SLOTS
from batchedmodel_contract.manifest.batching import MAX_BATCH_SIZE, MAX_LENGTH
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.manifest.upstream import OUTPUT_NAMES, PASS_PATHS, ServerProtocol
from batchedmodel_contract.processes.listening import EVERY_ADDRESS
from batchedmodel_contract.processes.logs import LogFormat, LogLevel
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_contract.schema.reading import as_in, declarations, read, setting
from batchedmodel_contract.schema.rules import Broken, Choice, Real, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import TEXT_MAP

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

    model_name: str = setting(Text(), required=True)
    """Name that callers use."""
    model_socket: str = setting(Text(), default="")
    """Unix socket of our model server; or else UPSTREAM_URL."""
    upstream_url: str = setting(Text(pattern=UPSTREAM_PATTERN, form=UPSTREAM_FORM), default="")
    """Where a server of one's own listens; or else MODEL_SOCKET."""
    upstream_protocol: ServerProtocol = setting(
        Choice(of=ServerProtocol), default=ServerProtocol.V2
    )
    """What the server at UPSTREAM_URL speaks."""
    replicated_outputs: tuple[str, ...] = setting(OUTPUT_NAMES, default=())
    """Outputs without rows of the server at UPSTREAM_URL, as a JSON list."""
    pass_paths: tuple[str, ...] = setting(PASS_PATHS, default=())
    """What is passed on to UPSTREAM_URL beside its protocol's paths, as a JSON list."""
    idempotent: bool = setting(Truth(), default=True)
    """Whether a row may be run again after its batch failed."""
    settings_folder: str = setting(Text(), required=True)
    """Folder that holds the batch settings; watched."""
    host: str = setting(Text(), default=EVERY_ADDRESS)
    """Address to listen on; `::` is every address, IPv4 too."""
    local_to: str = setting(Text(), default="")
    """The host that is listened on, where callers are this machine's alone: 403 for a `Host` that
    is neither it nor loopback, and for an `Origin` that is not the `Host`. Empty: neither is looked
    at, as in a cluster."""
    port: int = setting(Whole(minimum=0, maximum=65535), default=8000)
    """Port for callers."""
    admin_port: int = setting(Whole(minimum=0, maximum=65535), default=ADMIN_PORT)
    """Port for probes, metrics, drain."""
    token_file: str = setting(Text(), default="")
    """Where to write what /drain, load and unload must be called with, made up at each start;
    empty: nobody may call them."""
    pod_uid: str = setting(Text(), default="")
    """Uid of the pod, which every answer of the admin port names."""
    drain_delay_seconds: float = setting(Real(minimum=0, maximum=120), default=0.0)
    """A drain accepts requests until none has come for so long, or for three times as long."""
    drain_timeout_seconds: float = setting(Real(minimum=0, maximum=3700), default=35.0)
    """How long a drain waits for accepted requests; the longest time-out of one, and some."""
    adapter_header: str = setting(Text(), default="")
    """Header that may name the adapter of a request; empty: the model has no adapters."""
    adapter_slots: int = setting(Whole(minimum=0, maximum=MOST_SLOTS), default=0)
    """Adapters that the device has at the same time, as metrics tell it."""
    max_body_bytes: int = setting(
        Whole(minimum=1024, maximum=1024 * _MEBIBYTE), default=64 * _MEBIBYTE
    )
    """Largest request body; larger ones are refused with 413. Large JSON bodies are bounded by what
    their values take as well: see BATCHEDMODEL_MAX_QUEUE_BYTES."""
    max_queue_bytes: int = setting(
        Whole(minimum=128 * 1024, maximum=1024 * 1024 * _MEBIBYTE), default=256 * _MEBIBYTE
    )
    """Bytes that all callers together may make the process hold: bodies, as they came and as they
    were inflated, or their rows where these take more, until they are answered; what the values of
    a large JSON body take while it is read, which is 5 to 20 times its length for numbers; 48 KiB
    for each request that is not plain and small (more are refused with 429, or with 413 where they
    never fit), and in up to half of it answers that nobody has read (then 503)."""
    connection_age_seconds: float = setting(Real(minimum=1, maximum=86_400), default=60.0)
    """Mean age at which a caller's connection is closed after an answer, so that pooled connections
    reach added pods; +-20 % by connection."""
    log_level: LogLevel = setting(Choice(of=LogLevel), default=LogLevel.INFO)
    """How much to log."""
    log_format: LogFormat = setting(Choice(of=LogFormat), default=LogFormat.TEXT)
    """In which form to log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerSettings:
    """What the model server is told."""

    model_name: str = setting(Text(), required=True)
    """Name of the model."""
    model_socket: str = setting(Text(), required=True)
    """Unix socket to serve."""
    handler: str = setting(Text(), required=True)
    """How to run the model."""
    source: str = setting(Text(at_most=65_536), default="")
    """`spec.model.source` as JSON."""
    parameters: tuple[tuple[str, str], ...] = setting(TEXT_MAP, default=())
    """`spec.model.parameters` as JSON."""
    trust: bool = setting(Truth(), default=False)
    """Whether code among the model's files may be run."""
    max_batch_size: int = setting(Whole(minimum=1, maximum=MAX_BATCH_SIZE), default=32)
    """Largest batch to warm up."""
    idempotent: bool = as_in(SidecarSettings, "idempotent")
    accelerator: AcceleratorNeed = setting(Choice(of=AcceleratorNeed), default=AcceleratorNeed.NONE)
    """Whether the manifest asks for one, and whether the model fails without."""
    kv_cache_bytes: int = setting(Whole(minimum=0), default=0)
    """Memory for keys and values of generated texts; 0: KV_CACHE_FRACTION says."""
    kv_cache_fraction: float = setting(Real(minimum=0, maximum=1), default=0.0)
    """Share of the memory that the model leaves which keys and values take; 0: the server's."""
    max_context_tokens: int = setting(Whole(minimum=0, maximum=MAX_LENGTH), default=0)
    """Tokens of a prompt and its text together; 0: as many as the model takes."""
    adapters_folder: str = setting(Text(), default="")
    """Folder that holds adapters.json; watched. Empty: no adapters."""
    adapters_online: bool = setting(Truth(), default=False)
    """Whether hubs are asked for adapters although HF_HUB_OFFLINE is set, which is for the model:
    its files were fetched before."""
    cache_folder: str = setting(Text(), required=True)
    """Folder for downloaded models."""
    log_level: LogLevel = as_in(SidecarSettings, "log_level")
    log_format: LogFormat = as_in(SidecarSettings, "log_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """What the program is told that fetches a model's files before the model server starts."""

    source: str = setting(Text(at_most=65_536), required=True)
    """`spec.model.source` as JSON."""
    trust: bool = setting(Truth(), default=False)
    """Whether code and pickles are fetched as well."""
    cache_folder: str = as_in(ModelServerSettings, "cache_folder")
    report_file: str = setting(Text(), default="")
    """Where to write why nothing could be fetched."""
    log_level: LogLevel = as_in(SidecarSettings, "log_level")
    log_format: LogFormat = as_in(SidecarSettings, "log_format")


def from_environment(of: type[Settings], environ: Mapping[str, str]) -> Settings:
    """The settings of a process; raises `InvalidManifest` with every mistake by variable."""
    mistakes: list[Mistake] = []
    found: dict[str, object] = {}
    for field, declared in declarations(of):
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
