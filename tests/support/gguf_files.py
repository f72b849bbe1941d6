"""GGUF files made on the spot: small models of random weights, and headers that say anything."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.random_checkpoints import VOCABULARY

U32, F32, TEXT, LIST, U64 = 4, 6, 8, 9, 10
"""Types of values, as the format numbers them."""
FORMATS = {U32: "<I", F32: "<f", U64: "<Q"}
TOKENS = "tokenizer.ggml.tokens"
TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}</s>{% endfor %}"
SPECIAL = ("<pad>", "<s>", "</s>")
TRANSPOSED = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")
"""As GPT-2's checkpoints have them the other way round."""


def text(value: str | bytes, size: int | None = None) -> bytes:
    """A text as the format has it, which may lie about its size."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if size is None else size) + raw


def value(kind: int, content: Any) -> bytes:
    """The type of a value, and the value."""
    return struct.pack("<I", kind) + (
        text(content) if kind == TEXT else struct.pack(FORMATS[kind], content)
    )


def texts(*contents: str, count: int | None = None) -> bytes:
    """A list of texts, which may lie about how many there are."""
    head = struct.pack("<IIQ", LIST, TEXT, len(contents) if count is None else count)
    return head + b"".join(map(text, contents))


def tensor(name: str | bytes, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    """Where a tensor lies; `shape` in the format's order, of 32-bit floats unless `kind` says."""
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def header(
    fields: Mapping[str, bytes] | Iterable[tuple[str, bytes]],
    tensors: Sequence[bytes] = (),
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    tensor_count: int | None = None,
    field_count: int | None = None,
) -> bytes:
    """The header of a file, up to where its tensors begin."""
    listed = [*(fields.items() if isinstance(fields, Mapping) else fields)]
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(listed) if field_count is None else field_count,
    )
    body = b"".join([text(name) + content for name, content in listed] + [*tensors])
    whole = magic + version + struct.pack("<QQ", *counts) + body
    return whole + bytes(-len(whole) % 32)


def model_file(file: Path, architecture: str, *, quantised: bool = False, **config: Any) -> Path:
    """A small model of random weights, as llama.cpp's converter writes it."""
    import gguf
    import numpy as np
    import torch
    import transformers
    from gguf.quants import quantize
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    from batchedmodel_model_server.handlers.gguf_models import ARCHITECTURES

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        # Transformers reads it of the others only.
        "head_dim": 128 if architecture == "qwen3" else 16,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        **({"n_inner": 256, "intermediate_size": 256} if architecture == "gpt2" else {}),
        **config,
    }
    made = transformers.AutoConfig.for_model(ARCHITECTURES[architecture], **sizes)
    model = transformers.AutoModelForCausalLM.from_config(made)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    if architecture == "gpt2":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_head_count_kv(sizes["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(20_000.0)
        writer.add_rope_dimension_count(sizes["head_dim"])
        writer.add_key_length(sizes["head_dim"])
    if architecture.startswith("gemma"):
        writer.add_sliding_window(16)
    add_tokenizer(writer)
    names = get_gguf_hf_weights_map(model, TensorProcessor())
    weights = model.state_dict()
    for name, weight in sorted(names.items()):
        values = weights[weight].detach().float().numpy()
        if values.ndim == 1:
            values = values + np.random.default_rng(0).normal(0, 0.2, values.shape)
        if architecture == "gpt2" and name.endswith(TRANSPOSED):
            values = values.T
        values = np.ascontiguousarray(values, np.float32)
        if quantised and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_tokenizer(writer: Any) -> None:
    """Tokens of bytes, one of two bytes, and special ones."""
    from gguf import TokenType
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL, *letters, "ab"]
    padding = [f"[PAD{number}]" for number in range(VOCABULARY - len(tokens))]
    kinds = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(letters) + 1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*tokens, *padding])
    writer.add_token_types([*kinds, *[TokenType.UNUSED] * len(padding)])
    writer.add_token_merges(["a b"])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
