"""Adapters as peft makes and saves them, and peft's own answers: what ours are compared with."""

import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def saved_adapter(folder: Path, base: Path, kind: str, *, seed: int, **config: Any) -> Path:
    """An adapter with random weights for the checkpoint that transformers' class `kind` reads.

    `copies`: whether it has the base's embeddings and head too; "auto" is peft's own choice.
    """
    import torch
    import transformers

    peft, copies = _peft(), config.pop("copies", False)

    model = getattr(transformers, kind).from_pretrained(base)
    torch.manual_seed(seed)
    made = peft.LoraConfig(init_lora_weights=False, **config)
    adapted = _quiet(peft.get_peft_model, model, made)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    _quiet(adapted.save_pretrained, folder, save_embedding_layers=copies)
    return folder


def with_peft(base: Path, kind: str, folders: Sequence[Path]) -> list[Any]:
    """Transformers' model alone, then with each adapter."""
    import transformers

    peft = _peft()

    def model() -> Any:
        return getattr(transformers, kind).from_pretrained(base).eval()

    load = peft.PeftModel.from_pretrained
    return [model(), *(_quiet(load, model(), folder).eval() for folder in folders)]


def _peft() -> Any:
    return _quiet(importlib.import_module, "peft")


def _quiet(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # peft uses what this transformers calls deprecated, and comments on configs.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)
