"""Run by the Python of the environment `llamacpp`: makes a small Llama of random weights.

Its arguments are the file, and a file with its tokens and its chat template as JSON. The first two
tokens begin and end a text.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH, INNER, LAYERS, HEADS, KEY_HEADS = 256, 1024, 4, 8, 4


def main(path: str, about: str) -> None:
    told = json.loads(Path(about).read_text())
    tokens: list[str] = told["tokens"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(65_536)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control, control, *[normal] * (len(tokens) - 2)])
    # None is merged, but there must be one.
    writer.add_token_merges([f"{tokens[2]} {tokens[3]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(told["template"])

    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) * 0.5 if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    keys = WIDTH // HEADS * KEY_HEADS
    add("token_embd", len(tokens), WIDTH)
    add("output_norm", WIDTH)
    add("output", len(tokens), WIDTH)
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm", WIDTH)
        add(f"blk.{layer}.attn_q", WIDTH, WIDTH)
        add(f"blk.{layer}.attn_k", keys, WIDTH)
        add(f"blk.{layer}.attn_v", keys, WIDTH)
        add(f"blk.{layer}.attn_output", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_norm", WIDTH)
        add(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main(sys.argv[1], sys.argv[2])
