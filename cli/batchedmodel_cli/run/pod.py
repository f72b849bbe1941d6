"""Gives the two processes of a run what a pod gives its containers: a folder, settings, names.

Called by `run`. All that the processes are told goes through the contract's settings records.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from batchedmodel_cli.run.processes import ProcessSpec
from batchedmodel_contract.lora import ADAPTERS_FILE, adapter_settings
from batchedmodel_contract.manifest.batching import FILE_NAME, BatchSettings
from batchedmodel_contract.manifest.generation import Generation, KeyValueCache
from batchedmodel_contract.manifest.spec import ServerProtocol, drain_timeout_seconds
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.environment import (
    PREFIX,
    AcceleratorNeed,
    ModelServerSettings,
    SidecarSettings,
    source_to_json,
    to_environment,
)
from batchedmodel_kube.manifest.manifest import BatchedModel

BATCHER: Final = "batcher"
MODEL: Final = "model"
"""The containers' names in a pod."""

_SOCKET: Final = "model.sock"
_LONGEST_SOCKET_PATH: Final = 107  # sun_path holds 108 bytes, the closing zero included
# At its drain limit the batcher refuses what is left, waits 0.5 s for requests on their way and up
# to 5 s until all answers are sent.
_LAST_ANSWERS_SECONDS: Final = 10.0
_WORK_LEFT: Final = 1
_MODEL_STOP_SECONDS: Final = 10.0
# As in the model server's image: memory of a forward pass is kept for the next one.
_MALLOC: Final = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296"
    ":glibc.malloc.trim_threshold=4294967296:glibc.malloc.arena_max=1"
}


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A private folder whose path is short enough for a Unix socket in it; removed at the end."""
    parent = tempfile.gettempdir()
    sample = os.path.join(parent, "batchedmodel-12345678", _SOCKET)
    if len(os.fsencode(sample)) > _LONGEST_SOCKET_PATH:
        parent = "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="batchedmodel-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def processes(
    manifest: BatchedModel,
    folder: Path,
    inherited: Mapping[str, str],
    *,
    host: str,
    port: int,
    admin_port: int,
    upstream: str = "",
) -> tuple[ProcessSpec, ...]:
    """Batcher and model server, in the order in which they are to be stopped.

    With `upstream`, the address of a server that runs already, the batcher alone. Port 0 takes a
    free port. Writes the batch settings into `folder`, which must be empty.
    """
    model = manifest.spec.model
    batching, adapters = manifest.spec.batching, manifest.spec.adapters
    settings = settings_folder(folder)
    settings.mkdir(parents=True)
    write_settings(manifest, settings)
    # The manifest's own drain limit is for pods on Kubernetes.
    drain = float(
        drain_timeout_seconds(None, request_timeout_seconds=batching.request_timeout_seconds)
    )
    batcher = SidecarSettings(
        model_name=manifest.name,
        model_socket="" if upstream else str(folder / _SOCKET),
        upstream_url=upstream,
        upstream_protocol=model.protocol or ServerProtocol.V2,
        replicated_outputs=model.replicated_outputs,
        pass_paths=model.pass_paths,
        idempotent=model.idempotent,
        settings_folder=str(settings),
        host=host,
        local_to=host,
        port=port,
        admin_port=admin_port,
        drain_timeout_seconds=drain,
        adapter_header="" if adapters is None else adapters.header,
        adapter_slots=0 if adapters is None else adapters.slots,
    )
    in_front = ProcessSpec(
        name=BATCHER,
        command=(sys.executable, "-m", "batchedmodel_sidecar"),
        environment=_environment(inherited, batcher),
        stop_within_seconds=drain + _LAST_ANSWERS_SECONDS,
        liveness_path=sidecar_api.LIVE,
        exit_meanings={_WORK_LEFT: "the batcher ended before every request was answered"},
    )
    if upstream:
        return (in_front,)
    if model.handler is None:
        raise ValueError("a manifest without a handler got past on_this_machine: our bug")
    generation = manifest.spec.generation or Generation()
    cache = generation.kv_cache or KeyValueCache()
    server = ModelServerSettings(
        model_name=manifest.name,
        model_socket=str(folder / _SOCKET),
        handler=model.handler,
        source=source_to_json(model.source),
        parameters=model.parameters,
        trust=model.trust_remote_code,
        max_batch_size=batching.max_batch_size,
        idempotent=model.idempotent,
        accelerator=AcceleratorNeed.NONE
        if manifest.spec.accelerator is None
        else AcceleratorNeed.WANTED,
        kv_cache_bytes=cache.memory_bytes or 0,
        kv_cache_fraction=cache.fraction or 0.0,
        max_context_tokens=generation.max_context_tokens or 0,
        adapters_folder="" if adapters is None else str(settings),
        cache_folder=str(cache_folder(inherited) / "models"),
    )
    return (
        in_front,
        ProcessSpec(
            name=MODEL,
            command=(sys.executable, "-m", "batchedmodel_model_server"),
            environment=_environment({**_MALLOC, **inherited, **dict(model.env)}, server),
            stop_within_seconds=_MODEL_STOP_SECONDS,
            liveness_path=sidecar_api.MODEL_LIVE,
        ),
    )


def settings_folder(folder: Path) -> Path:
    """Where in the processes' folder the files lie that they follow."""
    return folder / "settings"


def write_settings(manifest: BatchedModel, settings: Path) -> bool:
    """Write what running processes follow; whether any of it is new. Raises `OSError`.

    The adapters come first: who has the batch settings that name their file has that file too.
    """
    spec, texts = manifest.spec, {}
    if spec.adapters is not None:
        texts[ADAPTERS_FILE] = adapter_settings(spec.adapters, spec.adapters.items).to_json()
    texts[FILE_NAME] = BatchSettings.of(spec).to_json()
    changed = False
    for name, text in texts.items():
        file = settings / name
        if not file.exists() or file.read_text("utf-8") != text:
            new = settings / f".{name}"
            new.write_text(text, "utf-8")
            new.replace(file)
            changed = True
    return changed


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where downloads are kept between runs."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "batchedmodel")


def _environment(
    inherited: Mapping[str, str], settings: SidecarSettings | ModelServerSettings
) -> dict[str, str]:
    # A variable of ours left over in the person's shell must not reach a process unasked.
    kept = {name: value for name, value in inherited.items() if not name.startswith(PREFIX)}
    return {**kept, "PYTHONUNBUFFERED": "1", **to_environment(settings)}
