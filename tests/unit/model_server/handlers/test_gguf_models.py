"""Fields of GGUF files that do not fit each other or the tensors are refused by name."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from batchedmodel_model_server.errors import CannotLoad
from support.gguf_files import F32, LIST, TEXT, TOKENS, U32, header, tensor, texts, value

pytest.importorskip("torch")
pytest.importorskip("gguf")

from batchedmodel_model_server.handlers.gguf_models import (
    checkpoint_of,
    config_of,
    read_gguf_header,
)

pytestmark = pytest.mark.torch

TENSORS = {
    "token_embd.weight": (64, 6),
    "blk.0.attn_output.weight": (32, 64),
    "blk.0.attn_k.weight": (64, 16),
    "blk.0.ffn_down.weight": (96, 64),
    "blk.1.ffn_down.weight": (96, 64),
}
FIELDS = {
    "general.architecture": value(TEXT, "llama"),
    "llama.block_count": value(U32, 2),
    "llama.context_length": value(U32, 512),
    "llama.embedding_length": value(U32, 64),
    "llama.feed_forward_length": value(U32, 96),
    "llama.attention.head_count": value(U32, 4),
    "llama.attention.head_count_kv": value(U32, 2),
    "llama.rope.dimension_count": value(U32, 8),
    "llama.rope.freq_base": value(F32, 5000.0),
    "llama.rope.scaling.type": value(TEXT, "none"),
    TOKENS: texts(*"abcdef"),
    "tokenizer.ggml.eos_token_id": value(U32, 5),
    "general.name": value(TEXT, "small"),
}


def written(
    folder: Path, fields: Mapping[str, bytes], tensors: Mapping[str, tuple[int, ...]]
) -> Path:
    """A file of these fields, with tensors one behind the other."""
    offset, listed = 0, []
    for name, (row, rows) in tensors.items():
        listed.append(tensor(name, row, rows, offset=offset))
        offset += -(-4 * row * rows // 32) * 32
    file = folder / "model.gguf"
    file.write_bytes(header(fields, listed) + bytes(offset))
    return file


def test_fields_that_fit_are_the_config(tmp_path: Path) -> None:
    file = written(tmp_path, FIELDS, TENSORS)
    assert config_of(file, read_gguf_header(file)) == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": True,
        "vocab_size": 6,
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_theta": 5000.0,
        "eos_token_id": 5,
    }


COUNT = "llama.block_count"
HEADS = "llama.attention.head_count"
NAN = float("nan")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"general.architecture": None}, "general.architecture: null is not one of gemma2, gemma3"),
        ({"general.architecture": value(U32, 1)}, "general.architecture: 1 is not one of gemma2"),
        ({"general.architecture": value(TEXT, "mamba")}, 'general.architecture: "mamba" is not'),
        ({COUNT: None}, f"{COUNT}: is missing"),
        ({COUNT: value(U32, 0)}, f"{COUNT}: 0 is not a whole number above 0"),
        ({COUNT: value(U32, 2**32 - 1)}, f"{COUNT}: 4294967295 is not a whole number above 0"),
        ({COUNT: value(U32, 2**30)}, f"{COUNT}: 1073741824 is not 2, which the tensors have"),
        ({COUNT: value(F32, 2.0)}, f"{COUNT}: 2.0 is not a whole number"),
        ({COUNT: value(TEXT, "2")}, f'{COUNT}: "2" is not a whole number'),
        ({COUNT: texts("2")}, f"{COUNT}: is a list"),
        (
            {"llama.embedding_length": value(U32, 2**30)},
            "llama.embedding_length: 1073741824 is not",
        ),
        ({"llama.feed_forward_length": value(U32, 1)}, "llama.feed_forward_length: 1 is not 96"),
        ({"llama.context_length": None}, "llama.context_length: is missing"),
        ({"llama.vocab_size": value(U32, 7)}, "llama.vocab_size: 7 is not 6"),
        ({HEADS: None}, f"{HEADS}: is missing"),
        ({HEADS: value(U32, 5)}, f"{HEADS}: 5 does not divide 32, the width of"),
        ({f"{HEADS}_kv": value(U32, 4)}, f"{HEADS}_kv: 4 is not 2, which the tensors have"),
        ({"llama.rope.dimension_count": value(U32, 2**31 - 1)}, "llama.rope.dimension_count: 2147"),
        ({"llama.rope.freq_base": value(F32, NAN)}, "llama.rope.freq_base: NaN is not a number"),
        ({"llama.rope.freq_base": value(F32, float("inf"))}, "llama.rope.freq_base: Infinity is"),
        (
            {"llama.rope.scaling.type": value(TEXT, "yarn")},
            "llama.rope.scaling.type: is not served",
        ),
        (
            {"llama.rope.scaling.factor": value(F32, 4.0)},
            "llama.rope.scaling.factor: is not served",
        ),
        (
            {"llama.expert_count": value(U32, 8)},
            "llama.expert_count: is not served, as transformers",
        ),
        ({TOKENS: None}, f"{TOKENS}: 0 tokens for 6 rows of token_embd.weight"),
        ({TOKENS: texts("a")}, f"{TOKENS}: 1 tokens for 6 rows of token_embd.weight"),
        (
            {"tokenizer.ggml.eos_token_id": value(U32, 6)},
            "tokenizer.ggml.eos_token_id: 6 is none of",
        ),
        (
            {"tokenizer.ggml.bos_token_id": value(F32, 1)},
            "tokenizer.ggml.bos_token_id: 1.0 is none",
        ),
    ],
)
def test_fields_that_lie_are_refused_by_name(
    tmp_path: Path, fields: Mapping[str, bytes | None], rule: str
) -> None:
    changed = {**FIELDS, **fields}
    kept = {name: content for name, content in changed.items() if content is not None}
    file = written(tmp_path, kept, TENSORS)
    with pytest.raises(CannotLoad) as refused:
        config_of(file, read_gguf_header(file))
    assert str(refused.value).startswith(f"{file}: {rule}")


@pytest.mark.parametrize("name", [name for name in TENSORS if name != "blk.1.ffn_down.weight"])
def test_tensors_that_are_not_there_are_named(tmp_path: Path, name: str) -> None:
    others = {one: shape for one, shape in TENSORS.items() if one != name}
    file = written(tmp_path, FIELDS, others)
    with pytest.raises(CannotLoad, match=f"tensor {name}: is missing"):
        config_of(file, read_gguf_header(file))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, "tokenizer: transformers makes none of it: ValueError: Cannot build a tokenizer"),
        ({"tokenizer.ggml.model": value(TEXT, "llama")}, "tokenizer: .*KeyError: 'scores'"),
        (
            {
                "tokenizer.ggml.model": value(TEXT, "gpt2"),
                "tokenizer.ggml.merges": texts("a", "x y"),
            },
            "tokenizer: transformers makes none of it: ",
        ),
        (
            {
                "tokenizer.ggml.model": value(TEXT, "gpt2"),
                "tokenizer.ggml.merges": texts("a b"),
                "tokenizer.chat_template": LIST.to_bytes(4, "little") + bytes(12),
            },
            "tokenizer: transformers makes none of it: ",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_made_is_refused(
    tmp_path: Path, fields: Mapping[str, bytes], rule: str
) -> None:
    file = written(tmp_path, {**FIELDS, **fields}, TENSORS)
    with pytest.raises(CannotLoad, match=rule), checkpoint_of(file):
        pass
