"""Looks up what a person names as a model, and makes its manifest. No code of a model is run.

A folder or a GGUF file that is there, a Python package that carries a checkpoint, or else a
repository of a hub.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedmodel_cli.manifest_file import UnusableManifest, package_spec
from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.manifest.source import is_file_handler
from batchedmodel_kube.manifest.manifest import (
    LONGEST_NAME,
    MODEL_NAME,
    TAKEN_NAME_RULE,
    TAKEN_NAMES,
)
from batchedmodel_kube.names import API_VERSION, KIND

CONFIG: Final = "config.json"
MODULES: Final = "modules.json"
GGUF: Final = ".gguf"
WEIGHTS: Final = ".safetensors"
_FILES: Final = (
    "A checkpoint has config.json, *.safetensors and, for texts, tokenizer.json, as transformers' "
    "save_pretrained writes them."
)
_MOST_SHOWN: Final = 8
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a config.json that is read; those of models have some thousands."""
_MODEL_PATH: Final = "get_model_path"
_REPOSITORY: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_GENERATING: Final = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model that can be served: without code, or by a handler among its files."""

    source: Mapping[str, Any]
    """As in a manifest."""
    title: str
    """What it is called where it comes from."""
    handler: str = "hf"
    generates: bool = False
    """Whether it makes texts, as far as its files say."""
    is_for_images: bool = False


def model_named(argument: str) -> Checkpoint:
    """What an argument names; raises `UnusableManifest` for what holds no checkpoint."""
    try:
        if not argument:
            raise ValueError("it is empty")
        at = Path(argument).expanduser().resolve()
        if at.is_dir():
            return _of_folder(at)
        if at.is_file():
            return _of_file(at)
        package = package_spec(argument)
        if package is not None and package.submodule_search_locations:
            return _of_package(argument, Path(package.submodule_search_locations[0]))
    except UnusableManifest:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise UnusableManifest(f"cannot be looked up: {error}") from error
    if _REPOSITORY.fullmatch(argument):
        return Checkpoint(
            source={"huggingFace": {"repo": argument}}, title=argument.partition("/")[2]
        )
    raise UnusableManifest(
        f"nothing of this name was found: no folder and no *{GGUF} at {at}, no installed Python "
        f"package, and owner/name of a hub it is not. {_FILES}"
    )


def label(title: str) -> str:
    """The title as a model's name: lower-case letters, digits and `-`, a letter first."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    if not words[:1].isalpha():
        words = f"model-{words}"
    name = words[:LONGEST_NAME].strip("-")
    return f"{name}-model" if name in TAKEN_NAMES else name


def model_name(text: str) -> str:
    """A name that a person gives; raises `ValueError`."""
    if re.fullmatch(str(MODEL_NAME.pattern), text) is None:
        raise ValueError(f"{shown(text)} is not {MODEL_NAME.form}")
    if text in TAKEN_NAMES:
        raise ValueError(f"{shown(text)} {TAKEN_NAME_RULE}")
    return text


def manifest(name: str, model: Checkpoint) -> dict[str, Any]:
    """The document of a manifest that serves a checkpoint."""
    spec: dict[str, Any] = {"model": {"handler": model.handler, "source": dict(model.source)}}
    if is_file_handler(model.handler):
        spec["model"]["trustRemoteCode"] = True
    if model.generates:
        spec["generation"] = {}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def _of_file(at: Path) -> Checkpoint:
    if at.suffix != GGUF:
        raise UnusableManifest(
            f"{at} is a file, but no *{GGUF}; a manifest is served without --model. {_FILES}"
        )
    return Checkpoint(source={"path": str(at)}, title=at.stem, generates=True)


def _of_folder(at: Path) -> Checkpoint:
    inside = [entry.name for entry in at.iterdir() if entry.is_dir()]
    versions = [int(name) for name in inside if re.fullmatch("[1-9][0-9]*", name)]
    # Of versions side by side the server takes the latest one.
    latest = at / str(max(versions)) if versions else at
    names = _names(latest)
    ggufs = [name for name in names if name.endswith(GGUF)]
    lacking = [] if {CONFIG, MODULES} & set(names) else [CONFIG]
    if not any(name.endswith(WEIGHTS) for name in names) and MODULES not in names:
        lacking.append(f"*{WEIGHTS}")
    if lacking and len(ggufs) == 1:
        # Beside a config.json it is served only by its own name.
        path = at / ggufs[0] if CONFIG in names else at
        return Checkpoint(
            source={"path": str(path)}, title=ggufs[0].removesuffix(GGUF), generates=True
        )
    if lacking:
        raise UnusableManifest(
            f"{at} is a folder, but no checkpoint: it lacks {' and '.join(lacking)}, and holds "
            f"{_listed(names)}. {_FILES}"
        )
    return Checkpoint(
        source={"path": str(at)},
        title=at.name,
        generates=_generates(latest, names),
        is_for_images="preprocessor_config.json" in names and "tokenizer.json" not in names,
    )


def _of_package(name: str, folder: Path) -> Checkpoint:
    inner = next((config.parent for config in sorted(folder.glob(f"*/{CONFIG}"))), None)
    names = [*_names(folder), *(() if inner is None else _names(inner))]
    ggufs = [file for file in names if file.endswith(GGUF)]
    code = folder / "__init__.py"
    says_where = code.is_file() and _MODEL_PATH in code.read_text("utf-8", errors="replace")
    if not says_where and CONFIG not in names and len(ggufs) != 1:
        raise UnusableManifest(
            f"the package {name} at {folder} has neither {_MODEL_PATH}() nor {CONFIG}, "
            f"and holds {_listed(names)}. {_FILES}"
        )
    return Checkpoint(
        source={"pythonPackage": name},
        title=name.rpartition(".")[2],
        generates=bool(ggufs) or _generates(inner or folder, names),
    )


def _names(folder: Path) -> Sequence[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _generates(folder: Path, names: Sequence[str]) -> bool:
    # A checkpoint of sentence-transformers keeps the name of the class that it was trained from.
    return _architecture(folder / CONFIG).endswith(_GENERATING) and MODULES not in names


def _architecture(file: Path) -> str:
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


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SHOWN
    some = ", ".join(map(shown, names[:_MOST_SHOWN])) or "nothing"
    return f"{some} and {more} more" if more > 0 else some
