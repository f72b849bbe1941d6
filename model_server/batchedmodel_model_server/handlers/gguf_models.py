"""Makes a checkpoint of a GGUF file, whose header may lie, and dequantises its weights.

The header is judged whole before a library sees the file: libraries slice, count and allocate by
whatever numbers a header has. Here a header is read up to a bound, each count and length is
compared with what is left of it, and each tensor lies within the file and beside the others. So
what a file makes us hold is a small multiple of its own size.

All that is known of its architectures is transformers': what its fields are called in a config,
which weight is which tensor and how it is laid out, how its tokens become a tokenizer. Only the
reader is ours, as transformers' own trusts the header, and takes seconds for a model's vocabulary.
What transformers would leave out, such as the scaling of positions, is refused.
"""

import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.manifest.source import GGUF_SUFFIX
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import MOST_TENSORS

MOST_HEADER_BYTES: Final = 32 * 1024 * 1024
"""That of a model with a quarter of a million words has some 17 MB."""
MOST_FIELDS: Final = 10_000
MOST_TEXT_BYTES: Final = 1024 * 1024
"""Of a text such as a chat template."""
MOST_TOKEN_BYTES: Final = 1024
"""Of a text in a list: a token, or two that are merged."""
_MOST_NAME_BYTES: Final = 256
_MOST_DIMENSIONS: Final = 4
_ALIGNMENTS: Final = tuple(1 << bit for bit in range(17))
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_TEXT: Final = 8
_LIST: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    kind: struct.Struct(f"<{letter}")
    for kind, letter in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
"""By the number of a value's type, how it is stored."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Where a tensor lies in the file, and how it is stored."""

    shape: tuple[int, ...]
    """In torch's order."""
    kind: int
    """As the format numbers them."""
    begin: int
    size: int
    """In bytes, as `begin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF file says of itself."""

    values: Mapping[str, float | str]
    """Numbers and texts, by field."""
    lengths: Mapping[str, int]
    """Of the fields that are lists."""
    tensors: Mapping[str, GgufTensor]


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that is the model: `path`, or the only one in a folder without `config.json`.

    None for any other folder; raises `CannotLoad` where it could be one of several.
    """
    if path.is_file():
        return path
    if (path / "config.json").exists():
        return None
    files = sorted(path.glob(f"*{GGUF_SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5])
        raise CannotLoad(f"{path} holds {len(files)} GGUF files ({names}): name one (source.path)")
    return files[0] if files else None


def read_gguf_header(file: Path) -> GgufHeader:
    """The header, whole and judged; raises `CannotLoad`, which names field, value and rule."""
    try:
        if not file.is_file():
            raise ValueError("it is no file")  # a pipe would be waited for
        with file.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            return _header(_Reader(content.read(MOST_HEADER_BYTES)), size)
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{file} cannot be read as GGUF: {error}") from error


class _Reader:
    """Takes one value behind the other; raises `ValueError` where the header ends before."""

    def __init__(self, header: bytes) -> None:
        self._header = header
        self.at = 0

    def take(self, size: int, field: str) -> bytes:
        taken = self._header[self.at : self.at + size]
        if len(taken) < size:
            rule = f"{size} bytes at {self.at} are not within the file's header"
            raise ValueError(f"{field}: {rule}, of which {MOST_HEADER_BYTES} bytes are read")
        self.at += size
        return taken

    def number(self, form: struct.Struct, field: str) -> int | float:
        (value,) = form.unpack(self.take(form.size, field))
        return value  # type: ignore[no-any-return]

    def integer(self, form: struct.Struct, field: str, most: int | None = None) -> int:
        value = int(self.number(form, field))
        if most is not None and value > most:
            raise ValueError(f"{field}: {value} is more than {most}")
        return value

    def text(self, field: str, most: int) -> str:
        size = self.integer(_U64, field)
        if size > most:
            raise ValueError(f"{field}: a text of {size} bytes; at most {most} are read")
        return self.take(size, field).decode()

    def name(self, field: str) -> str:
        name = self.text(field, _MOST_NAME_BYTES)
        if not name or not name.isprintable():
            raise ValueError(f"{field}: {shown(name)} is no printable name")
        return name


def _header(reader: _Reader, file_size: int) -> GgufHeader:
    if reader.take(len(_MAGIC), "magic") != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.integer(_U32, "version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        rule = "its bytes are in big-endian order" if swapped else "it is not 2 or 3"
        raise ValueError(f"version: {version}: {rule}")
    tensors = reader.integer(_U64, "tensor_count", MOST_TENSORS)
    fields = reader.integer(_U64, "metadata_kv_count", MOST_FIELDS)
    values: dict[str, float | str] = {}
    lengths: dict[str, int] = {}
    for at in range(fields):
        name = reader.name(f"field {at}")
        if name in values or name in lengths:
            raise ValueError(f"{name}: is there twice")
        kind = reader.integer(_U32, name)
        if kind == _LIST:
            lengths[name] = _skipped_list(reader, name)
        elif kind == _TEXT:
            values[name] = reader.text(name, MOST_TEXT_BYTES)
        else:
            values[name] = reader.number(_number_form(kind, name), name)
    return GgufHeader(
        values=values, lengths=lengths, tensors=_tensors(reader, tensors, values, file_size)
    )


def _number_form(kind: int, field: str) -> struct.Struct:
    if kind not in _NUMBERS:
        raise ValueError(f"{field}: {kind} is no type of a value, or not in a list")
    return _NUMBERS[kind]


def _skipped_list(reader: _Reader, field: str) -> int:
    kind, count = reader.integer(_U32, field), reader.integer(_U64, field)
    if kind != _TEXT:
        reader.take(count * _number_form(kind, field).size, field)
        return count
    for _ in range(count):  # each takes eight bytes at least, so the header's end is soon there
        reader.text(field, MOST_TOKEN_BYTES)
    return count


def _tensors(
    reader: _Reader, count: int, values: Mapping[str, float | str], file_size: int
) -> dict[str, GgufTensor]:
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or alignment not in _ALIGNMENTS:
        rule = f"is not a power of two up to {_ALIGNMENTS[-1]}"
        raise ValueError(f"general.alignment: {shown(alignment)} {rule}")
    from gguf import GGML_QUANT_SIZES

    blocks = {kind.value: sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    listed: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for at in range(count):
        name = reader.name(f"tensor {at}")
        if name in listed:
            raise ValueError(f"tensor {name}: is there twice")
        field = f"tensor {name}"
        dimensions = reader.integer(_U32, field, _MOST_DIMENSIONS)
        shape = tuple(reader.integer(_U64, field) for _ in range(dimensions))[::-1]
        if not shape or 0 in shape:
            raise ValueError(f"{field}: shape {list(shape)}: a tensor without numbers")
        listed[name] = shape, reader.integer(_U32, field), reader.integer(_U64, field)
    start = -(-reader.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, (shape, kind, offset) in listed.items():
        if kind not in blocks:
            raise ValueError(f"tensor {name}: {kind} is no type of a tensor")
        row, size = blocks[kind]
        if shape[-1] % row:
            raise ValueError(f"tensor {name}: rows of {shape[-1]} are no whole blocks of {row}")
        tensor = GgufTensor(
            shape=shape, kind=kind, begin=start + offset, size=prod(shape) // row * size
        )
        if offset % alignment or tensor.begin + tensor.size > file_size:
            rule = f"with {tensor.size} bytes it is not within the file's {file_size} bytes"
            rule = f"is no multiple of {alignment}" if offset % alignment else rule
            raise ValueError(f"tensor {name}: offset {offset}: {rule}")
        tensors[name] = tensor
    laid = sorted(tensors.items(), key=lambda item: item[1].begin)
    for (before, first), (name, second) in pairwise(laid):
        if first.begin + first.size > second.begin:
            raise ValueError(f"tensor {name}: overlaps tensor {before}")
    return tensors


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
        for name, tensor in header.tensors.items():
            if name not in names:
                raise ValueError("is not served, as transformers leaves it out")
            stored = np.fromfile(file, np.uint8, tensor.size, offset=tensor.begin)
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
