"""Reads what a transformers checkpoint says about itself, without torch and without its weights.

The files of sentence-transformers say how token vectors become one vector (`modules.json`, the
pooling folder's `config.json`) and how long texts may be. Without them it is the normalised mean.
Whatever would make our vectors differ from the model's own is refused with a reason.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.inference.description import Activation, Classification
from batchedmodel_contract.invalid_input import shown
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import (
    MOST_TOKENIZER_BYTES,
    member,
    read_bytes,
    read_document,
    read_json,
)

_MODULES: Final = "modules.json"
_SENTENCE_CONFIG: Final = "config_sentence_transformers.json"
_TOKENIZER: Final = "tokenizer.json"
_WEIGHTS: Final = ("*.safetensors", "*.gguf")
_ADAPTER: Final = "adapter_config.json"
_MOST_LABELS: Final = 1_000_000
_MOST_LAYERS: Final = 1_000
IMAGE_MODELS: Final = ("CLIPModel", "CLIPVisionModelWithProjection")
_POOLING_MODELS: Final = ("CLIPTextModel", "CLIPTextModelWithProjection")
"""Of texts, with vectors that the model itself makes, and that others were trained to match."""
_FIXED_LENGTH_MODELS: Final = ("SiglipTextModel", "Siglip2TextModel")
_ENCODER: Final = "EncoderModel"
_OLDER_GENERATION: Final = "LMHeadModel"
"""How classes ended, such as GPT-2's, before they were called ForCausalLM."""
LOGITS: Final = "logits"
"""The output that holds a classifier's raw scores."""
_SHORTEST_UNKNOWN: Final = 1 << 20  # a tokenizer without a limit says so by an absurd number


class Pooling(StrEnum):
    """How the vectors of the tokens become one."""

    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    LAST_TOKEN = "lasttoken"
    OWN = "own"
    """As the model does it."""


_FLAG: Final = re.compile(r"pooling_mode_(\w+?)(_tokens?)?")
"""The booleans that pooling files had before they named the mode."""


class TaskName(StrEnum):
    """What a checkpoint is for; the value ends the name of its architecture, but for embeddings."""

    TEXT_CLASSIFICATION = "ForSequenceClassification"
    TOKEN_CLASSIFICATION = "ForTokenClassification"
    IMAGE_CLASSIFICATION = "ForImageClassification"
    TEXT_GENERATION = "ForCausalLM"
    TEXT_EMBEDDING = "text embedding"
    IMAGE_EMBEDDING = "image embedding"


_HEADS: Final = ", ".join(task.value for task in TaskName if task.startswith("For"))
SERVED: Final = (
    "handler hf serves base models such as BertModel, T5EncoderModel and ViTModel, and those whose "
    f"name ends in {_HEADS}"
)
"""What is served instead, at the end of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFiles:
    """What the files of a text model say."""

    folder: Path
    """Holds the weights and `config.json`; below the model's folder in older layouts."""
    config: Mapping[str, Any]
    architecture: str
    """The name of transformers' class."""
    base: str
    """Of the class without a head."""
    vocabulary: int
    pad: int
    text_limit: int | None
    """Texts are truncated to this many tokens; None when only the positions limit them."""
    tokenizer: bytes
    pooling: Pooling
    """Of an embedding, as the next two."""
    normalize: bool
    shortest: int | None
    """From how many numbers on a vector is of use without the others; None: nothing is said."""


def task_of(path: Path) -> TaskName:
    """What the checkpoint is for; raises `CannotLoad` for what is missing or unsupported."""
    folder, _, _ = _modules(path)
    config = read_config(folder)
    if "auto_map" in config:
        raise CannotLoad("config.json: the model needs code of its own (auto_map); none is run")
    architecture = architecture_of(config)
    # A sentence-transformers checkpoint keeps the name of the class it was trained from.
    is_pooled = (path / _MODULES).is_file()
    task = TaskName.TEXT_EMBEDDING if is_pooled else _named_task(architecture, config)
    # A label for each token is what an encoder alone can give.
    encodes = architecture.endswith(_ENCODER) or task is TaskName.TOKEN_CLASSIFICATION
    if config.get("is_encoder_decoder") and not encodes:
        raise _unserved(architecture, "an encoder-decoder model")
    if isinstance(config.get("backbone"), str):
        raise CannotLoad("config.json: backbone names another model; none is read")
    _check_layers(config)
    if not any(file for kind in _WEIGHTS for file in folder.glob(kind)):
        raise CannotLoad(f"{folder} holds no *.safetensors file; other weights are not loaded")
    if (folder / _ADAPTER).is_file():
        raise CannotLoad(f"{folder / _ADAPTER}: adapters are not supported; merge it first")
    return task


def _named_task(architecture: str, config: Mapping[str, Any]) -> TaskName:
    for task in TaskName:
        if architecture.endswith(task.value):
            return task
    if architecture.endswith(_OLDER_GENERATION):
        return TaskName.TEXT_GENERATION
    if architecture in IMAGE_MODELS or (architecture.endswith("Model") and "patch_size" in config):
        return TaskName.IMAGE_EMBEDDING
    if architecture in _FIXED_LENGTH_MODELS:
        raise _unserved(architecture, "a model of texts that are filled up to one length")
    if architecture.endswith("Model") or architecture in _POOLING_MODELS:
        return TaskName.TEXT_EMBEDDING
    # Such as ObjectDetection, MaskedLM: what transformers calls it says what it is for.
    _, has_head, head = architecture.rpartition("For")
    words = re.findall(r"[A-Z][a-z]+|[A-Z]+(?![a-z])", head if has_head else "")
    purpose = " ".join(word.lower() if word.istitle() else word for word in words)
    raise _unserved(architecture, f"a model for {purpose or 'another purpose'}")


def _unserved(architecture: str, kind: str) -> CannotLoad:
    return CannotLoad(f"config.json: {architecture} is {kind}; {SERVED}")


def folder_of(path: Path) -> Path:
    """Where the weights and `config.json` are; raises `CannotLoad`."""
    return _modules(path)[0]


def read_config(folder: Path) -> dict[str, Any]:
    """The model's `config.json`; raises `CannotLoad`."""
    return read_json(folder / "config.json")


def read_text_files(path: Path) -> TextFiles:
    """What the files in `path` say; raises `CannotLoad` for what is missing or unsupported."""
    folder, pooling, normalize = _modules(path)
    config, text = read_config(folder), {}
    # Named after the architecture in old checkpoints: sentence_roberta_config.json.
    for file in sorted(folder.glob("sentence_*_config.json"))[:1]:
        text = read_json(file)
    vocabulary = config.get("vocab_size")
    if type(vocabulary) is not int or vocabulary < 1:
        raise CannotLoad(f"{folder / 'config.json'}: vocab_size is not a positive integer")
    architecture = architecture_of(config)
    pools = architecture in _POOLING_MODELS
    default = Pooling.OWN if pools else Pooling.MEAN
    return TextFiles(
        folder=folder,
        config=config,
        architecture=architecture,
        base=architecture if pools or architecture.endswith(_ENCODER) else "AutoModel",
        vocabulary=vocabulary,
        pad=_pad(config, vocabulary),
        text_limit=_text_limit(folder, text),
        tokenizer=_tokenizer(path, folder, lower=bool(text.get("do_lower_case"))),
        pooling=_pooling(pooling) if pooling else default,
        normalize=normalize,
        shortest=_shortest(config),
    )


def classes_of(config: Mapping[str, Any]) -> Classification:
    """The labels of a classifier whose raw scores come in `LOGITS`."""
    labels = config.get("id2label") or {}
    if not labels:
        # As transformers' own default for a config that says nothing.
        count = config.get("num_labels", 2)
        if type(count) is not int or not 1 <= count <= _MOST_LABELS:
            raise CannotLoad(f"config.json: num_labels is not a number from 1 to {_MOST_LABELS}")
        labels = {str(index): f"LABEL_{index}" for index in range(count)}
    try:
        named = {int(index): str(label) for index, label in labels.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CannotLoad("config.json: id2label is not a label for each number") from error
    if sorted(named) != list(range(len(named))):
        raise CannotLoad("config.json: id2label does not count from 0")
    several = config.get("problem_type") == "multi_label_classification"
    return Classification(
        output=LOGITS,
        labels=tuple(named[index] for index in range(len(named))),
        activation=Activation.SIGMOID if several else Activation.SOFTMAX,
    )


def _modules(path: Path) -> tuple[Path, Path | None, bool]:
    """The folders of transformer and pooling, and whether vectors are normalised."""
    file = path / _MODULES
    if not file.is_file():
        return path, None, True
    prompt = read_json(path / _SENTENCE_CONFIG, {}).get("default_prompt_name")
    if prompt is not None:
        raise CannotLoad(f"{path}: the model's default prompt {prompt!r} is not supported")
    try:
        entries = read_document(file)
        kinds = [str(entry["type"]).rpartition(".")[2] for entry in entries]
        folders = [member(path, entry["path"], file) for entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise CannotLoad(f"{file} is not a list of modules") from error
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CannotLoad(
            f"{file}: modules {', '.join(kinds)} are not supported, only Transformer, Pooling "
            "and, if wanted, Normalize"
        )
    return folders[0], folders[1], len(kinds) == 3


def _check_layers(config: Mapping[str, Any]) -> None:
    """Also of the parts that CLIP's config has for texts and images."""
    for part in (config, *config.values()):
        for name, value in part.items() if isinstance(part, dict) else ():
            # A module is made for each layer before any weight is looked at.
            is_number = name.endswith(("layers", "n_layer")) and isinstance(value, int | float)
            if is_number and not value <= _MOST_LAYERS:
                rule = f"{name} is {shown(value)}; at most {_MOST_LAYERS} are made"
                raise CannotLoad(f"config.json: {rule}")


def _text_limit(folder: Path, text: Mapping[str, Any]) -> int | None:
    name, limit = "max_seq_length", text.get("max_seq_length")
    if limit is None:
        name = "model_max_length"
        limit = read_json(folder / "tokenizer_config.json", {}).get(name)
    if limit is None:
        return None
    # A comparison also bears NaN, and integers too large for a float.
    if type(limit) not in (int, float) or not 1 <= limit < math.inf:
        rule = "is not a finite number of at least 1"
        raise CannotLoad(f"{folder}: {name} {shown(limit)} {rule}")
    return int(limit) if limit < _SHORTEST_UNKNOWN else None


def _pad(config: Mapping[str, Any], vocabulary: int) -> int:
    pad = config.get("pad_token_id")
    if pad is None:
        return 0
    if type(pad) is not int or not 0 <= pad < vocabulary:
        rule = f"is not an integer from 0 to {vocabulary - 1}, the last of the vocabulary"
        raise CannotLoad(f"config.json: pad_token_id {shown(pad)} {rule}")
    return pad


def architecture_of(config: Mapping[str, Any]) -> str:
    """The name of the class that the checkpoint was made by; raises `CannotLoad`."""
    listed = config.get("architectures")
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], str):
        raise CannotLoad("config.json: architectures names no class")
    return listed[0]


def _pooling(folder: Path) -> Pooling:
    config = read_json(folder / "config.json")
    prompts = read_json(folder.parent / _SENTENCE_CONFIG, {}).get("prompts")
    has_prompts = isinstance(prompts, dict) and any(prompts.values())
    if config.get("include_prompt") is False and has_prompts:
        # Where a caller's prompt ends cannot be seen from the tokens.
        raise CannotLoad(
            f"{folder / 'config.json'}: include_prompt: false is not supported, by which prompts "
            "would be left out of the pooling"
        )
    modes = config.get("pooling_mode")
    if modes is None:
        flags = [_FLAG.fullmatch(name) for name, said in config.items() if said]
        modes = [flag[1] for flag in flags if flag]
    if not isinstance(modes, list):
        modes = [modes]
    known = [one for one in Pooling if one is not Pooling.OWN]
    if len(modes) != 1 or modes[0] not in known:
        told = " + ".join(one if isinstance(one, str) else shown(one) for one in modes)
        raise CannotLoad(
            f"{folder / 'config.json'}: pooling {told or 'none'} is not supported, "
            f"only one of {', '.join(known)}"
        )
    return Pooling(modes[0])


def _shortest(config: Mapping[str, Any]) -> int | None:
    """The least of the sizes for which the model was trained (Matryoshka), as its config says.

    Whether a model bears being cut cannot be seen from its weights.
    """
    listed = config.get("matryoshka_dimensions")
    if listed is None:
        return 1 if config.get("is_matryoshka") is True else None
    if (
        not isinstance(listed, list)
        or not listed
        or not all(type(one) is int and one >= 1 for one in listed)
    ):
        raise CannotLoad("config.json: matryoshka_dimensions is not a list of sizes")
    return int(min(listed))


def _tokenizer(path: Path, folder: Path, *, lower: bool) -> bytes:
    for file in (folder / _TOKENIZER, path / _TOKENIZER):
        if file.is_file():
            content = read_bytes(file, MOST_TOKENIZER_BYTES)
            try:
                return lowercasing(content) if lower else content
            except (TypeError, AttributeError, KeyError, ValueError) as error:
                raise CannotLoad(f"{file}: its normalizer cannot be read: {error!r}") from error
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
