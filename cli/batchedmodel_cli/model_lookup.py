"""Looks up on this machine what a person names as a model. No code of a model is run."""

import json
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from batchedmodel_cli.checkpoint import CONFIG, Checkpoint, Holding, checkpoint
from batchedmodel_cli.manifest_file import UnusableManifest

_MOST_BYTES: Final = 16 * 1024 * 1024
_MODEL_PATH: Final = "get_model_path"


def model_named(argument: str) -> Checkpoint:
    """The checkpoint that an argument names; raises `UnusableManifest`."""
    try:
        if not argument:
            raise ValueError("it is empty")
        at = Path(argument).expanduser().resolve()
        return checkpoint(
            argument,
            at,
            is_file=at.is_file(),
            folder=_folder(at) if at.is_dir() else None,
            package=_package(argument),
        )
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, UnusableManifest):
            raise
        raise UnusableManifest(f"cannot be looked up: {error}") from error


def _folder(at: Path) -> Holding:
    """Of a folder with versions side by side what the latest one holds, as the server takes it."""
    inside = [one.name for one in at.iterdir() if one.is_dir()]
    numbers = [int(one) for one in inside if one.isascii() and one.isdigit() and one[0] != "0"]
    inner = at / str(max(numbers)) if numbers else at
    names = _names(inner)
    return Holding(folder=at, names=names, architecture=_architecture(inner))


def _package(name: str) -> Holding | None:
    spec = _spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    code = folder / "__init__.py"
    inner = next((one.parent for one in sorted(folder.glob(f"*/{CONFIG}"))), folder)
    return Holding(
        folder=folder,
        names=[*_names(folder), *(_names(inner) if inner != folder else ())],
        architecture=_architecture(inner),
        says_where=code.is_file() and _MODEL_PATH in code.read_text("utf-8", errors="replace"),
    )


def _spec(name: str) -> ModuleSpec | None:
    outermost, *parts = name.split(".")
    if not all(part.isidentifier() for part in (outermost, *parts)) or outermost == "__main__":
        return None
    # The model server imports from the working folder too.
    spec = find_spec(outermost) or PathFinder.find_spec(outermost, [str(Path.cwd())])
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def _names(folder: Path) -> Sequence[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _architecture(folder: Path) -> str:
    file = folder / CONFIG
    if not file.is_file():
        return ""
    try:
        with file.open("rb") as stream:
            config: Any = json.loads(stream.read(_MOST_BYTES))
        return str(config["architectures"][0])
    except (ValueError, RecursionError) as error:
        raise UnusableManifest(f"{file} is not JSON: {error}") from error
    except (LookupError, TypeError):
        return ""  # the model server says by its name what is not served
