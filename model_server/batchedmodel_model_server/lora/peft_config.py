"""Reads peft's `adapter_config.json`: what is supported, and how an adapter is scaled. No torch.

Which modules an adapter changes, and by which rank, is said by its weights: peft saves those of the
modules that it changed and no others. So a regular expression of `target_modules` need not be run.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import read_json

CONFIG: Final = "adapter_config.json"
MAX_LABELS_BYTES: Final = 512 * 1024
"""Of the labels of one adapter as JSON: a sidecar reads them on its event loop."""
_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA",
    "lora_bias": "biases of LoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "target_parameters": "adapters of single parameters",
    "trainable_token_indices": "trained tokens",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of `init_lora_weights` that train against a base other than the one served."""
_LONGEST_PATTERN: Final = 200
_MOST_PATTERNS: Final = 10_000
_PLAIN: Final = re.compile(r"[\w.\-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """What a LoRA's config says."""

    ranks: frozenset[int]
    """That its modules may have."""
    alpha: float
    alpha_pattern: Mapping[str, float]
    root_of_rank: bool
    """Scaled by the rank's square root (rsLoRA)."""
    targets: tuple[str, ...] | None
    """Ends of names of the modules that it changes; None: whatever its weights say."""
    replaced: tuple[str, ...]
    """Ends of names of the modules that it replaces (`modules_to_save`)."""

    def scaling(self, module: str, rank: int) -> float:
        """By what the product of both matrices is multiplied."""
        alpha = self.alpha
        for pattern, value in self.alpha_pattern.items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = value
                break
        return alpha / (math.sqrt(rank) if self.root_of_rank else rank)

    def changes(self, module: str) -> bool:
        """Whether the config allows for weights of this module."""
        return self.targets is None or ends_with(module, self.targets)


def ends_with(module: str, names: tuple[str, ...]) -> bool:
    """Whether the module is named by one of these, in whole or by its last parts."""
    return any(module == name or module.endswith(f".{name}") for name in names)


def read_config(folder: Path) -> PeftConfig:
    """The config in an adapter's folder; raises `CannotLoad` for what is not served."""
    file = folder / CONFIG
    document = read_json(file)
    kind = document.get("peft_type")
    if kind != "LORA":
        raise CannotLoad(f"{file}: peft_type {shown(kind)} is not supported; LORA is")
    for name, words in _REFUSED.items():
        if document.get(name):
            raise CannotLoad(f"{file}: {name}: {words} is not supported")
    if document.get("bias", "none") != "none":
        raise CannotLoad(f"{file}: bias {shown(document['bias'])} is not supported; none is")
    how = document.get("init_lora_weights", True)
    if isinstance(how, str) and how.lower().startswith(_CHANGES_BASE):
        raise CannotLoad(
            f"{file}: init_lora_weights {shown(how)} changes the base; convert it to plain LoRA"
        )
    rank = _whole(file, "r", document.get("r"))
    ranks = _numbers(file, "rank_pattern", document)
    alphas = _numbers(file, "alpha_pattern", document)
    for pattern in alphas:
        _check_pattern(file, pattern)
    targets = document.get("target_modules")
    return PeftConfig(
        ranks=frozenset([rank, *(_whole(file, f"rank_pattern.{k}", v) for k, v in ranks.items())]),
        alpha=_number(file, "lora_alpha", document.get("lora_alpha")),
        alpha_pattern={k: _number(file, f"alpha_pattern.{k}", v) for k, v in alphas.items()},
        root_of_rank=bool(document.get("use_rslora")),
        targets=None if isinstance(targets, str) else _names(file, "target_modules", targets or []),
        replaced=_names(file, "modules_to_save", document.get("modules_to_save") or []),
    )


def read_labels(folder: Path) -> tuple[str, ...] | None:
    """The labels of a `config.json` beside the adapter, if it has any; raises `CannotLoad`."""
    file = folder / "config.json"
    found = read_json(file, absent={}).get("id2label")
    if found is None:
        return None
    if not isinstance(found, dict) or set(found) != set(map(str, range(len(found)))):
        raise CannotLoad(f"{file}: id2label is not a label for each number from 0")
    labels = tuple(str(found[str(at)]) for at in range(len(found)))
    if len(json.dumps(labels)) > MAX_LABELS_BYTES:
        raise CannotLoad(f"{file}: id2label is longer than {MAX_LABELS_BYTES} bytes as JSON")
    return labels


def _check_pattern(file: Path, pattern: str) -> None:
    # What a regular expression of a stranger takes is unbounded; peft itself writes plain names.
    if len(pattern) > _LONGEST_PATTERN or not _PLAIN.fullmatch(pattern.removeprefix("^")):
        raise CannotLoad(
            f"{file}: alpha_pattern {shown(pattern)} is not a module's name; other regular "
            "expressions are not supported"
        )


def _whole(file: Path, name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise CannotLoad(f"{file}: {name} {shown(value)} is not a whole number above 0")
    return value


def _number(file: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise CannotLoad(f"{file}: {name} {shown(value)} is not a number")
    return float(value)


def _numbers(file: Path, name: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document.get(name) or {}
    if not isinstance(found, dict) or len(found) > _MOST_PATTERNS:
        raise CannotLoad(f"{file}: {name} is not a number for each name")
    return found


def _names(file: Path, name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise CannotLoad(f"{file}: {name} {shown(value)} is not a list of names")
    return tuple(value)
