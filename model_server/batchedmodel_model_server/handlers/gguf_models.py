"""Makes a checkpoint of a GGUF file, and dequantises its weights.

All that is known of its architectures is transformers': what its fields are called in a config,
which weight is which tensor and how it is laid out, how its tokens become a tokenizer. Only the
reader is ours, as transformers' own trusts the header, and takes seconds for a model's vocabulary.
What transformers would leave out, such as the scaling of positions, is refused.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.gguf_header import GgufHeader, gguf_file, read_gguf_header

ARCHITECTURES: Final[Mapping[str, str]] = {
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gpt2": "gpt2",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
"""By what GGUF calls those that are served, what transformers calls them."""
_AS_IN_CONFIG: Final = ("attn_logit_softcapping", "final_logit_softcapping")
"""Fields that transformers leaves at its defaults."""
_FRACTIONS: Final = ("softcapping", "epsilon", "freq_base")
"""How fields end that are no whole numbers."""
_NO_SCALING: Final = ("rope.scaling.type", "none")
_MOST: Final = 2**31 - 1
_MOST_LAYERS: Final = 1_000
_TOKENS: Final = "tokenizer.ggml.tokens"


@contextmanager
def checkpoint_of(path: Path) -> Iterator[Path]:
    """The model's folder; of a GGUF file one with the files that transformers' checkpoints have.

    The latter has a link to the file for weights, and is there within the context. Raises
    `CannotLoad`.
    """
    file = gguf_file(path)
    if file is None:
        yield path
        return
    config = config_of(file, read_gguf_header(file))
    with tempfile.TemporaryDirectory(prefix=f"{file.stem}-") as made:
        folder = Path(made)
        (folder / file.name).symlink_to(file.resolve())
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        _save_tokenizer(file, folder)
        yield folder


def config_of(file: Path, header: GgufHeader) -> dict[str, Any]:
    """The `config.json` that the fields amount to; raises `CannotLoad`, by field."""
    from transformers.integrations import GGUF_CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        rule = f"is not one of {', '.join(ARCHITECTURES)}"
        raise CannotLoad(f"{file}: general.architecture: {shown(architecture)} {rule}")
    kind, tokens = ARCHITECTURES[architecture], header.lengths.get(_TOKENS, 0)
    names = {**GGUF_CONFIG_MAPPING[architecture], **{name: name for name in _AS_IN_CONFIG}}
    config: dict[str, Any] = {
        "model_type": kind,
        "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "vocab_size": tokens,
    }
    try:
        right = _right_sizes(architecture, header)
        for field in {**header.lengths, **header.values}:
            prefix, _, part = field.partition(".")
            if prefix != architecture or (part, header.values.get(field)) == _NO_SCALING:
                continue
            if names.get(part) is None and part not in right:
                raise ValueError(f"{field}: is not served, as transformers leaves it out")
            number = _number(field, header)
            if number != right.get(part, number):
                raise ValueError(f"{field}: {number} is not {right[part]}, which the tensors have")
            if names.get(part) is not None:
                config[names[part]] = number
        for part, name in GGUF_CONFIG_MAPPING["tokenizer"].items():
            if (token := header.values.get(f"tokenizer.{part}")) is not None:
                if type(token) is not int or not 0 <= token < tokens:
                    raise ValueError(f"tokenizer.{part}: {shown(token)} is none of {tokens} tokens")
                config[name] = token
    except ValueError as error:
        raise CannotLoad(f"{file}: {error}") from error
    return config


def _number(field: str, header: GgufHeader) -> int | float:
    value = header.values.get(field)
    kinds, kind = ((int, float), "") if field.endswith(_FRACTIONS) else ((int,), "whole ")
    if type(value) in kinds and isinstance(value, int | float) and 0 < value <= _MOST:
        return value
    rule = "is a list" if field in header.lengths else "is missing" if value is None else ""
    rule = rule or f"{shown(value)} is not a {kind}number above 0 and up to {_MOST}"
    raise ValueError(f"{field}: {rule}")


def _right_sizes(architecture: str, header: GgufHeader) -> dict[str, int]:
    """What fields must say, by the shapes of tensors; raises `ValueError`."""

    def size(tensor: str, axis: int) -> int:
        if tensor not in header.tensors:
            raise ValueError(f"tensor {tensor}: is missing")
        return header.tensors[tensor].shape[axis]

    layers = {name.split(".")[1] for name in header.tensors if name.startswith("blk.")}
    heads = int(_number(f"{architecture}.attention.head_count", header))
    width, vocabulary = size("blk.0.attn_output.weight", -1), size("token_embd.weight", 0)
    if width % heads:
        rule = f"does not divide {width}, the width of blk.0.attn_output.weight"
        raise ValueError(f"{architecture}.attention.head_count: {heads} {rule}")
    if len(layers) > _MOST_LAYERS:
        raise ValueError(f"{architecture}.block_count: {len(layers)} is more than {_MOST_LAYERS}")
    if header.lengths.get(_TOKENS, 0) != vocabulary:
        rule = f"{header.lengths.get(_TOKENS, 0)} tokens for {vocabulary} rows of token_embd.weight"
        raise ValueError(f"{_TOKENS}: {rule}")
    for needed in ("block_count", "embedding_length", "context_length"):
        _number(f"{architecture}.{needed}", header)
    head = width // heads
    keys = size("blk.0.attn_k.weight", 0) // head if architecture != "gpt2" else heads
    return {
        "block_count": len(layers),
        "embedding_length": size("token_embd.weight", -1),
        "vocab_size": vocabulary,
        "feed_forward_length": size("blk.0.ffn_down.weight", -1),
        "attention.head_count_kv": keys,
        **dict.fromkeys(
            ("attention.key_length", "attention.value_length", "rope.dimension_count"), head
        ),
    }


def _save_tokenizer(file: Path, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    try:
        architecture, tokens, settings = get_gguf_tokenizer(str(file))
        made, _ = convert_gguf_tokenizer(architecture, tokens)
        PreTrainedTokenizerFast(tokenizer_object=made, **settings).save_pretrained(folder)
    except BaseException as error:  # the library of tokenizers panics over some
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoad(f"{file}: tokenizer: transformers makes none of it: {reason}") from error


def dequantised(file: Path, skeleton: Any, dtype: str) -> dict[str, Any]:
    """The weights of a model that has none yet, by their names; raises `CannotLoad`."""
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType, dequantize
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    header = read_gguf_header(file)
    make = TENSOR_PROCESSORS.get(str(header.values["general.architecture"]), TensorProcessor)
    processor = make(config=skeleton.config.to_dict())
    expected, weights = skeleton.state_dict(), {}
    names = get_gguf_hf_weights_map(skeleton, processor)
    try:
        with file.open("rb") as content:
            for name, tensor in header.tensors.items():
                if name not in names:
                    raise ValueError("is not served, as transformers leaves it out")
                content.seek(tensor.begin)
                stored = np.fromfile(content, np.uint8, tensor.size)
                rows = stored.reshape(*tensor.shape[:-1], -1)
                values = dequantize(rows, GGMLQuantizationType(tensor.kind))
                done = processor.process(values, name, parsed_parameters={"tensors": {}})
                made = torch.from_numpy(np.ascontiguousarray(done.weights))
                right = expected[names[name]].shape
                if made.shape != right:
                    rule = f"and {names[name]} has {list(right)} by the fields"
                    raise ValueError(f"its shape is {list(made.shape)}, {rule}")
                weights[names[name]] = made.to(getattr(torch, dtype))
    except (OSError, ValueError, NotImplementedError) as error:
        raise CannotLoad(f"{file}: tensor {name}: {error}") from error
    return weights
