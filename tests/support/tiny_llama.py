"""A Llama of random weights, made on the spot, whose tokens are ASCII's letters."""

from pathlib import Path
from typing import Any, Final

import orjson

TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
LETTERS: Final = [chr(number) for number in range(33, 127)] + ["\u0120", "\u010a"]
"""As byte-level tokenizers write them; the last two are a space and the end of a line."""
TOKENS: Final = ["<s>", "</s>", *LETTERS]


def llama_checkpoint(folder: Path) -> Path:
    """Write one for transformers. It never ends a text by itself."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=65_536,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=0, pad_token_id=1, do_sample=False)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(_tokenizer())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "pad_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps(settings))
    return folder


def _tokenizer() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    tokenizer: Any = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    text: str = tokenizer.to_str()
    return text
