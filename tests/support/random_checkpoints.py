"""Random checkpoints of models that generate, saved on the spot: they speak, and mean nothing.

Their weights are wide, or the most probable next token would nearly always be the last one again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 320
BYTES_FROM = 4
"""The id of byte 0; ids below it are special."""
STOP = 2
_SPECIAL = ("<pad>", "<s>", "</s>", "<turn>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<turn>{{ message.role }}\n"
    "{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
WINDOW = 16
_SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": STOP,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": WINDOW},
    "Gemma": {"head_dim": 16},
    # Its scores have a cap, and it runs by transformers' eager attention.
    "Gemma2": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "tie_word_embeddings": False,
    },
    "Gemma3": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,
    },
    "Phi": {},
    "Phi3": {"original_max_position_embeddings": 256},
    "GPT2": {"num_key_value_heads": None},
}
"""Those that are tried with many texts, and what makes each small and yet what it is."""
_EXPERTS: Mapping[str, Any] = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_ALTERNATING: Mapping[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    **FAMILIES,
    "Qwen3Moe": {**_EXPERTS, "num_experts": 4},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.2},
    "GPTNeoX": {},
    "Cohere2": _ALTERNATING,
    "Olmo2": {},
    "Olmo3": _ALTERNATING,
    "SmolLM3": {},
    "Granite": {},
    "StableLm": {},
    "Starcoder2": {},
    "Exaone4": _ALTERNATING,
    "Ministral": {"sliding_window": WINDOW, "head_dim": 8},
    "DeepseekV3": {
        **_EXPERTS,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "Arcee": {},
    "Helium": {"head_dim": 8},
    "Glm4": {"head_dim": 8},
    "Nemotron": {},
    "Ernie4_5": {"head_dim": 8},
    "SeedOss": {"head_dim": 8},
    "Apertus": {},
}
"""All that are tried, by the beginning of the name of their class, as docs/language-models.md has
them."""
_NAMES: Mapping[str, tuple[str, str]] = {
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "GPT2": ("GPT2Config", "GPT2LMHeadModel"),
}


def generating_checkpoint(folder: Path, family: str, *, seed: int = 0, **config: Any) -> Path:
    """A model of this family with a tokenizer of bytes and a chat template.

    `config` goes before the sizes here; None leaves one out.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    names = _NAMES.get(family, (f"{family}Config", f"{family}ForCausalLM"))
    settings = {**_SIZES, **ARCHITECTURES.get(family, {}), **config}
    given = {name: value for name, value in settings.items() if value is not None}
    made = getattr(transformers, names[0])(**given)
    model = getattr(transformers, names[1])(made)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(byte_tokenizer())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tokens = dict(zip(("pad_token", "bos_token", "eos_token"), _SPECIAL, strict=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [STOP]}))
    return folder


def byte_tokenizer() -> bytes:
    """A tokenizer.json with a token for each byte, and the special ones in front."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {text: id for id, text in enumerate((*_SPECIAL, *letters))}
    tokenizer = Tokenizer(BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    return str(tokenizer.to_str()).encode()


def reference(folder: Path, dtype: str = "float32") -> Any:
    """Transformers' own model of a checkpoint, with the attention that it picks itself."""
    import torch
    import transformers

    made = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return made.eval()
