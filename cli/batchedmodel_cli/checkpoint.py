"""Decides what a person names as a model, and makes its manifest. Pure.

A folder or a GGUF file that is there, a Python package that carries a checkpoint, or else a
repository of a hub.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedmodel_cli.manifest_file import UnusableManifest
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
_REPOSITORY: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_GENERATING: Final = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a folder of this machine holds, as far as it says whether a checkpoint is in it."""

    folder: Path
    names: Sequence[str]
    architecture: str = ""
    """Of the config.json in it or, in a package, in a folder of it."""
    says_where: bool = False
    """Of a package: it has a get_model_path()."""


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


def checkpoint(
    argument: str, at: Path, *, is_file: bool, folder: Holding | None, package: Holding | None
) -> Checkpoint:
    """What `argument` names; raises `UnusableManifest` for what holds no checkpoint.

    `at` is the absolute path that it may mean, `folder` and `package` what is there by that name.
    """
    if folder is not None:
        return _of_folder(folder)
    if is_file:
        if at.suffix != GGUF:
            raise UnusableManifest(
                f"{at} is a file, but no *{GGUF}; a manifest is served without --model. {_FILES}"
            )
        return Checkpoint(source={"path": str(at)}, title=at.stem, generates=True)
    if package is not None:
        return _of_package(argument, package)
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


def _of_folder(folder: Holding) -> Checkpoint:
    names, at = folder.names, folder.folder
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
        generates=_generates(folder),
        is_for_images="preprocessor_config.json" in names and "tokenizer.json" not in names,
    )


def _of_package(name: str, package: Holding) -> Checkpoint:
    ggufs = [one for one in package.names if one.endswith(GGUF)]
    if not package.says_where and CONFIG not in package.names and len(ggufs) != 1:
        raise UnusableManifest(
            f"the package {name} at {package.folder} has neither get_model_path() nor {CONFIG}, "
            f"and holds {_listed(package.names)}. {_FILES}"
        )
    return Checkpoint(
        source={"pythonPackage": name},
        title=name.rpartition(".")[2],
        generates=bool(ggufs) or _generates(package),
    )


def _generates(holding: Holding) -> bool:
    # A checkpoint of sentence-transformers keeps the name of the class that it was trained from.
    return holding.architecture.endswith(_GENERATING) and MODULES not in holding.names


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SHOWN
    some = ", ".join(map(shown, names[:_MOST_SHOWN])) or "nothing"
    return f"{some} and {more} more" if more > 0 else some
