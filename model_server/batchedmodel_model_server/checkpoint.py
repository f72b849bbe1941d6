"""Reads what a transformers checkpoint says about itself, without torch and without its weights.

An embedding checkpoint may carry the files of sentence-transformers, which say how token vectors
become one vector (`modules.json`, the pooling folder's `config.json`, a normalising step) and how
long texts may be. Without them: mean over the tokens, normalised. Whatever would make our vectors
differ from the model's own is refused with a reason instead of being ignored.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from batchedmodel_model_server.errors import CannotLoad

_MODULES: Final = "modules.json"
_TOKENIZER: Final = "tokenizer.json"
_SHORTEST_UNKNOWN: Final = 1 << 20  # a tokenizer without a limit says so by an absurd number


class Pooling(StrEnum):
    """How the vectors of the tokens become one."""

    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    LAST_TOKEN = "lasttoken"


# The booleans that pooling files had before they named the mode.
_FLAGS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCheckpoint:
    """Everything about an embedding model but its weights."""

    folder: Path
    """Holds the weights and `config.json`; below the model's folder in older layouts."""
    vocabulary: int
    pad: int
    positions: int | None
    """`max_position_embeddings`; None when the config sets no bound."""
    text_limit: int | None
    """Texts are truncated to this many tokens; None when only the positions limit them."""
    pooling: Pooling
    normalize: bool
    tokenizer: bytes


def read_checkpoint(path: Path) -> EmbeddingCheckpoint:
    """What the files in `path` say; raises `CannotLoad` for what is missing or unsupported."""
    listed = _modules(path)
    folder = path / listed.transformer
    config = _json(folder / "config.json")
    _refuse_other_tasks(config, has_modules=(path / _MODULES).is_file())
    if not any(folder.glob("*.safetensors")):
        raise CannotLoad(f"{folder} holds no *.safetensors file; other weights are not loaded")
    text = _text_settings(folder)
    return EmbeddingCheckpoint(
        folder=folder,
        vocabulary=_whole(config, "vocab_size", folder),
        pad=config.get("pad_token_id") or 0,
        positions=config.get("max_position_embeddings"),
        text_limit=_text_limit(text, folder),
        pooling=_pooling(path / listed.pooling) if listed.pooling else Pooling.MEAN,
        normalize=listed.normalize,
        tokenizer=_tokenizer(path, folder, lower=bool(text.get("do_lower_case"))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Modules:
    transformer: str
    pooling: str | None
    normalize: bool


def _modules(path: Path) -> _Modules:
    file = path / _MODULES
    if not file.is_file():
        return _Modules(transformer="", pooling=None, normalize=True)
    prompt = _json(path / "config_sentence_transformers.json", {}).get("default_prompt_name")
    if prompt is not None:
        raise CannotLoad(f"{path}: the model's default prompt {prompt!r} is not supported")
    try:
        entries = json.loads(file.read_bytes())
        kinds = [str(entry["type"]).rpartition(".")[2] for entry in entries]
        folders = [str(entry["path"]) for entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise CannotLoad(f"{file} is not a list of modules") from error
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CannotLoad(
            f"{file}: modules {', '.join(kinds)} are not supported, only Transformer, Pooling "
            "and, if wanted, Normalize"
        )
    return _Modules(transformer=folders[0], pooling=folders[1], normalize=len(kinds) == 3)


def _refuse_other_tasks(config: dict[str, Any], *, has_modules: bool) -> None:
    if "auto_map" in config:
        raise CannotLoad("config.json: the model needs code of its own (auto_map); none is run")
    if config.get("is_encoder_decoder"):
        raise CannotLoad("config.json: encoder-decoder models are not supported by handler hf")
    architectures = config.get("architectures") or ["none"]
    # A sentence-transformers checkpoint keeps the name of the class it was trained from.
    if not has_modules and not architectures[0].endswith("Model"):
        raise CannotLoad(
            f"config.json: architecture {architectures[0]} is not supported; handler hf serves "
            "embeddings of base models such as BertModel"
        )


def _pooling(folder: Path) -> Pooling:
    config = _json(folder / "config.json")
    named = config.get("pooling_mode")
    modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)] if named is None else named
    if isinstance(modes, str):
        modes = [modes]
    if len(modes) != 1 or modes[0] not in list(Pooling):
        raise CannotLoad(
            f"{folder / 'config.json'}: pooling {' + '.join(modes) or 'none'} is not supported, "
            f"only one of {', '.join(Pooling)}"
        )
    return Pooling(modes[0])


def _text_settings(folder: Path) -> dict[str, Any]:
    # Named after the architecture in old checkpoints: sentence_roberta_config.json.
    for file in sorted(folder.glob("sentence_*_config.json")):
        return _json(file)
    return {}


def _text_limit(text: dict[str, Any], folder: Path) -> int | None:
    limit = text.get("max_seq_length")
    if limit is None:
        limit = _json(folder / "tokenizer_config.json", {}).get("model_max_length")
    return int(limit) if limit is not None and limit < _SHORTEST_UNKNOWN else None


def _tokenizer(path: Path, folder: Path, *, lower: bool) -> bytes:
    for file in (folder / _TOKENIZER, path / _TOKENIZER):
        if file.is_file():
            return lowercasing(file.read_bytes()) if lower else file.read_bytes()
    raise CannotLoad(f"{folder} has no {_TOKENIZER}")


def lowercasing(tokenizer: bytes) -> bytes:
    """The same tokenizer.json, with a step that lowers case in front unless it has one."""
    document = json.loads(tokenizer)
    normalizer = document.get("normalizer")
    steps = [normalizer] if normalizer else []
    if normalizer and normalizer.get("type") == "Sequence":
        steps = normalizer["normalizers"]
    if any(step.get("type") == "Lowercase" or step.get("lowercase") for step in steps):
        return tokenizer
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    return json.dumps(document, ensure_ascii=False).encode()


def _whole(config: dict[str, Any], field: str, folder: Path) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise CannotLoad(f"{folder / 'config.json'}: {field} is not a positive integer")
    return value


def _json(file: Path, absent: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        if absent is not None:
            return absent
        raise CannotLoad(f"{file} is missing") from error
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{file} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise CannotLoad(f"{file} is not a JSON object")
    return document
