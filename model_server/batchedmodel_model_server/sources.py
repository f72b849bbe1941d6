"""Finds the folder with a model's files, from whichever source the manifest names.

The only module that knows of hubs and of packages that carry models. Called once, on the compute
thread, since downloads block.
"""

import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from batchedmodel_contract.spec import HuggingFace, Source
from batchedmodel_model_server.errors import CannotLoad

# Weights as safetensors only: the other formats of a repository are pickles or for other runtimes.
_WANTED: Final = ("*.safetensors", "*.json", "*.txt")
_TRUSTED: Final = ("*.py", "*.pt", "*.pth")
_log = logging.getLogger(__name__)


def model_folder(source: Source | None, cache_folder: Path, *, trust: bool = False) -> Path | None:
    """The folder, None without a source; raises `CannotLoad`.

    Code and pickles are fetched only with `trust`.

    Downloads go to `cache_folder`, in the hub's own layout, and are found there the next time.
    """
    if source is None:
        return None
    if source.path is not None:
        return _existing(Path(source.path), "source.path")
    if source.python_package is not None:
        return _of_package(source.python_package)
    if source.hugging_face is not None:
        wanted = (*_WANTED, *_TRUSTED) if trust else _WANTED
        return _of_hub(source.hugging_face, cache_folder, wanted)
    raise CannotLoad("source names neither path nor pythonPackage nor huggingFace")


def _existing(folder: Path, field: str) -> Path:
    if not folder.is_dir():
        raise CannotLoad(f"{field}: {folder} is not a folder")
    return folder


def _of_package(name: str) -> Path:
    field = "source.pythonPackage"
    try:
        package = importlib.import_module(name)
    except Exception as error:
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


def _of_hub(wanted: HuggingFace, cache_folder: Path, files: Sequence[str]) -> Path:
    # Here and not above: the library reads its environment variables when it is imported, takes
    # a third of a second, and is needed for this source only.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"source.huggingFace: {wanted.repo} at {wanted.revision}"
    _log.info("fetching %s", name)
    try:
        folder = snapshot_download(
            repo_id=wanted.repo,
            revision=wanted.revision,
            cache_dir=cache_folder,
            allow_patterns=list(files),
        )
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise CannotLoad(f"{name} is not on the hub, or not to be seen without a token") from error
    except LocalEntryNotFoundError as error:
        raise CannotLoad(f"{name} is not in the cache and the hub was not reached") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise CannotLoad(f"{name} could not be fetched: {error}") from error
    return Path(folder)
