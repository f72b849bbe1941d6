"""Small random checkpoints of transformers, saved on the spot."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from support.encoders import ENCODERS, UNBOUNDED

VOCABULARY = 200
_SIZES: Mapping[str, Mapping[str, Any]] = {
    # Each family has words of its own for the same four sizes.
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    },
}
_OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    # Positions are counted from behind the padding's id.
    "Roberta": {"pad_token_id": 1, "max_position_embeddings": 66, "type_vocab_size": 1},
    "MPNet": {"pad_token_id": 1, "max_position_embeddings": 66},
    # Local attention far shorter than the texts, or nobody would notice that it is missing.
    "ModernBert": {
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": 64,
    },
    "Qwen3": {"num_key_value_heads": 1, "head_dim": 16, "use_cache": False},
}


def text_checkpoint(folder: Path, family: str, head: str = "Model", **config: Any) -> Path:
    """A text model of this family and head with wide random weights, and a tokenizer of words."""
    import torch
    import transformers

    torch.manual_seed(0)
    settings = {
        **_SIZES.get(family, _SIZES[""]),
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        **ENCODERS.get(family, {}),
        **_OF_FAMILY.get(family, {}),
        **config,
    }
    if family in UNBOUNDED:
        del settings["max_position_embeddings"]
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64}))
    made = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}{head}")(made)
    with torch.no_grad():
        # Biases start as zeros, and a zero that is lost is not missed.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    return folder


def image_checkpoint(folder: Path, family: str, head: str, **config: Any) -> Path:
    """An image model for 8 x 8 pixels, with the file of its processor."""
    import torch
    import transformers

    torch.manual_seed(0)
    settings = {
        **_SIZES[""],
        "image_size": 8,
        "patch_size": 4,
        "initializer_range": 0.2,
        **config,
    }
    made = getattr(transformers, f"{family}Config")(**settings)
    getattr(transformers, f"{family}{head}")(made).save_pretrained(folder)
    processor = {
        "size": {"height": 8, "width": 8},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.5, 0.6, 0.7],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def tokenizer_json() -> bytes:
    """Whole words w0, w1, ... by their number; texts and pairs framed as BERT's are."""
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="w1 $A w2", pair="w1 $A w2 $B:1 w2:1", special_tokens=[("w1", 1), ("w2", 2)]
    )
    return tokenizer.to_str().encode()
