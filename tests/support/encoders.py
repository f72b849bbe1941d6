"""The text encoders that `handler: hf` is tested with: the list of docs/handlers.md is this one."""

from collections.abc import Mapping
from typing import Any, Final

_BEHIND_PAD: Final = {"pad_token_id": 1, "max_position_embeddings": 66}
"""Positions are counted from behind the padding's id."""
_T5: Final = {"d_model": 32, "d_kv": 16, "num_heads": 2, "num_layers": 2, "d_ff": 64}
_XLM: Final = {"emb_dim": 32, "n_layers": 2, "n_heads": 2}
ENCODERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Albert": {"embedding_size": 16},
    "Bert": {},
    "BigBird": {"attention_type": "original_full"},
    "CLIPText": {"eos_token_id": 2},
    "Camembert": _BEHIND_PAD,
    "ConvBert": {
        "embedding_size": 32, "conv_kernel_size": 3, "num_groups": 1, "head_ratio": 1,
    },
    "Data2VecText": _BEHIND_PAD,
    "Deberta": {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 64,
    },
    "DebertaV2": {},
    "DistilBert": {},
    "Electra": {},
    "Ernie": {},
    "Esm": {
        "pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "rotary",
        "token_dropout": False,
    },
    "EuroBert": {"num_key_value_heads": 2, "pad_token_id": 0},
    "FNet": {},
    "Flaubert": _XLM,
    "GPT2": {},
    "Gemma3Text": {"head_dim": 16, "num_key_value_heads": 1},
    "Gte": {},
    "IBert": _BEHIND_PAD,
    "JinaEmbeddingsV3": {},
    "Llama": {},
    "Longformer": {"attention_window": 8, **_BEHIND_PAD},
    "MPNet": {},
    "MT5": _T5,
    "MegatronBert": {},
    "MobileBert": {"intra_bottleneck_size": 16, "embedding_size": 16, "true_hidden_size": 16},
    "ModernBert": {},
    "Mra": {},
    "NomicBert": {},
    "Qwen2": {"num_key_value_heads": 1},
    "Qwen3": {},
    "RemBert": {"input_embedding_size": 16},
    "RoCBert": {},
    "RoFormer": {},
    "Roberta": {},
    "RobertaPreLayerNorm": _BEHIND_PAD,
    "SqueezeBert": {
        **dict.fromkeys(
            ("q_groups", "k_groups", "v_groups", "post_attention_groups", "intermediate_groups"), 2
        ),
        "output_groups": 2, "embedding_size": 32,
    },
    "T5": _T5,
    "UMT5": _T5,
    "XLM": _XLM,
    "XLMRoberta": _BEHIND_PAD,
    "XLMRobertaXL": _BEHIND_PAD,
    "XLNet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64},
    "Xmod": {**_BEHIND_PAD, "languages": ["en_XX"], "default_language": "en_XX"},
}  # fmt: skip
"""By family, what makes each small and yet what it is."""
BASES: Final[Mapping[str, str]] = dict.fromkeys(("MT5", "T5", "UMT5"), "EncoderModel")
"""How the class without a head is called, of families where that is not `...Model`."""
UNBOUNDED: Final = frozenset({"MT5", "T5", "UMT5", "XLNet"})
"""Families whose configs have no bound on texts: their tokenizers' files have."""
WITHOUT_HEADS: Final[Mapping[str, frozenset[str]]] = {
    "ForSequenceClassification": frozenset({"CLIPText", "MT5", "T5", "UMT5"}),
    "ForTokenClassification": frozenset({"CLIPText", "Gemma3Text"}),
}
"""Families without such a class, or with one that also runs a decoder."""
