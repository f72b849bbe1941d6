"""Finds the folder with a model's files, from whichever source the manifest names.

Called for every load, on a thread that may block, since downloads do, and by the program `fetch`.
The only module that knows of packages that carry models; what a hub holds is brought by `fetching`.
"""

import importlib
import os
from pathlib import Path
from typing import Final

from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.environment import HUB_FOLDER
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.fetched_models import fetched

# Weights as safetensors only: the other formats of a repository are pickles or for other runtimes.
_WANTED: Final = ("*.safetensors", "*.json", "*.txt")
_TRUSTED: Final = ("*.py", "*.pt", "*.pth")


def model_folder(source: Source | None, cache_folder: Path, *, trust: bool = False) -> Path | None:
    """The folder, None without a source; raises `CannotLoad`.

    Code and pickles are fetched only with `trust`.

    Downloads go to a folder of their own in `cache_folder`, and are found there the next time.
    """
    if source is None:
        return None
    if source.path is not None:
        return _existing(Path(source.path), "source.path")
    if source.python_package is not None:
        return _of_package(source.python_package)
    if source.hugging_face is not None:
        wanted = (*_WANTED, *_TRUSTED) if trust else _WANTED
        return fetched(source.hugging_face, cache_folder / HUB_FOLDER, wanted, os.environ)
    raise CannotLoad("source names neither path nor pythonPackage nor huggingFace")


def _existing(folder: Path, field: str) -> Path:
    if not folder.is_dir():
        raise CannotLoad(f"{field}: {folder} is not a folder")
    return folder


def _of_package(name: str) -> Path:
    field = "source.pythonPackage"
    try:
        package = importlib.import_module(name)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoad(f"{field}: {name} cannot be imported: {reason}") from error
    if hasattr(package, "get_model_path"):
        try:
            return _existing(Path(package.get_model_path()), f"{field}: {name}.get_model_path()")
        except (OSError, TypeError, ValueError) as error:
            raise CannotLoad(f"{field}: {name}.get_model_path() failed: {error}") from error
    if package.__file__ is not None and (Path(package.__file__).parent / "config.json").is_file():
        return Path(package.__file__).parent
    raise CannotLoad(
        f"{field}: {name} has neither get_model_path() nor a config.json in its folder"
    )
