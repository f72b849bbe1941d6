"""Gives the two processes of a run what a pod gives its containers: a folder, settings, names.

Called by `run`. All that the processes are told goes through the contract's settings records.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from batchedmodel_cli.run.processes import ProcessSpec
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.environment import PREFIX, ModelServerSettings, SidecarSettings
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.pod_settings import (
    model_server_settings,
    settings_files,
    sidecar_settings,
    to_environment,
)
from batchedmodel_kube.manifest.spec import drain_timeout_seconds

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
    model, batching = manifest.spec.model, manifest.spec.batching
    settings = settings_folder(folder)
    settings.mkdir(parents=True)
    write_settings(manifest, settings)
    # The manifest's own drain limit is for pods on Kubernetes.
    drain = float(
        drain_timeout_seconds(None, request_timeout_seconds=batching.request_timeout_seconds)
    )
    batcher = replace(
        sidecar_settings(manifest.name, manifest.spec, settings_folder=str(settings)),
        model_socket="" if upstream else str(folder / _SOCKET),
        upstream_url=upstream,
        host=host,
        local_to=host,
        port=port,
        admin_port=admin_port,
        drain_timeout_seconds=drain,
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
    server = model_server_settings(
        manifest.name,
        manifest.spec,
        model_socket=str(folder / _SOCKET),
        settings_folder=str(settings),
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
    """Write what running processes follow; whether any of it is new. Raises `OSError`."""
    spec, changed = manifest.spec, False
    items = () if spec.adapters is None else spec.adapters.items
    in_pod = tuple(item.for_model_server() for item in items)
    for name, text in settings_files(spec, in_pod).items():
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
