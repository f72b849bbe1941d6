"""Reads the files of an adapter as peft saves them, and checks them against its base.

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
from batchedmodel_model_server.api.adapters import AdapterWeights, LowRank
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import check_file, read_json

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
WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_A: Final = ".lora_A.weight"
_B: Final = ".lora_B.weight"
_COPIED: Final = ".base_layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """What a LoRA's config says."""

    alpha: float
    alpha_pattern: Mapping[str, float]
    root_of_rank: bool
    """Scaled by the rank's square root (rsLoRA)."""
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
    replaced = document.get("modules_to_save") or []
    if not isinstance(replaced, list) or not all(isinstance(one, str) for one in replaced):
        raise CannotLoad(f"{file}: modules_to_save {shown(replaced)} is not a list of names")
    return PeftConfig(
        alpha=_number(file, "lora_alpha", document.get("lora_alpha")),
        alpha_pattern=_alpha_pattern(file, document.get("alpha_pattern") or {}),
        root_of_rank=bool(document.get("use_rslora")),
        replaced=tuple(replaced),
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


def _alpha_pattern(file: Path, found: Any) -> dict[str, float]:
    if not isinstance(found, dict) or len(found) > _MOST_PATTERNS:
        raise CannotLoad(f"{file}: alpha_pattern is not a number for each name")
    for pattern in found:
        # What a regular expression of a stranger takes is unbounded; peft itself writes names.
        if len(pattern) > _LONGEST_PATTERN or not _PLAIN.fullmatch(pattern.removeprefix("^")):
            raise CannotLoad(
                f"{file}: alpha_pattern {shown(pattern)} is not a module's name; other regular "
                "expressions are not supported"
            )
    return {name: _number(file, f"alpha_pattern.{name}", value) for name, value in found.items()}


def _number(file: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise CannotLoad(f"{file}: {name} {shown(value)} is not a number")
    return float(value)


def read_adapter(
    folder: Path, modules: Mapping[str, Any], max_rank: int, labels: int | None
) -> AdapterWeights:
    """The adapter in a folder, for a base with these modules; raises `CannotLoad`.

    `labels`: how many the base has; None where it classifies nothing.
    """
    config, file = read_config(folder), folder / WEIGHTS
    tensors = _tensors(file)
    named = [key.removesuffix(_A) for key in tensors if key.endswith(_A)]
    try:
        found = {
            name: _low_rank(name, tensors, config, modules.get(name), max_rank) for name in named
        }
        heads = _heads(tensors, config, modules)
    except _Unfit as error:
        raise CannotLoad(f"{file}: {error}") from None
    if not found and not heads:
        raise CannotLoad(f"{file} holds no weights of an adapter")
    own = read_labels(folder) if heads and labels is not None else None
    if own is not None and len(own) != labels:
        raise CannotLoad(f"{folder}: config.json has {len(own)} labels, and the base {labels}")
    return AdapterWeights(modules=found, heads=heads, labels=own)


class _Unfit(Exception):
    """Does not fit the base; the message is the reason."""


def _tensors(file: Path) -> dict[str, Any]:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not file.is_file():
        raise CannotLoad(f"{file} is missing")
    check_file(file)
    try:
        # Not mapped: who shortens a mapped file ends the process.
        found = load(file.read_bytes())
    except (TypeError, SafetensorError) as error:
        raise CannotLoad(f"{file} cannot be read as safetensors: {error}") from error
    for key, tensor in found.items():
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise CannotLoad(f"{file}: {key[:200]} holds something else than finite numbers")
    return {key.removeprefix(_PREFIX): tensor for key, tensor in found.items()}


def sizes_of(module: Any) -> tuple[int, int] | None:
    """Inputs and outputs of a module that adapters can change; None for any other."""
    import torch
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, torch.nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, Conv1D):
        inputs, outputs = module.weight.shape
        return inputs, outputs
    return None


def _low_rank(
    name: str, tensors: dict[str, Any], config: PeftConfig, module: Any, max_rank: int
) -> LowRank:
    import torch

    if module is None:
        raise _Unfit(f"the base has no module {name[:200]}")
    a, b = tensors.pop(name + _A), tensors.pop(name + _B, None)
    sizes = sizes_of(module)
    if sizes is None:
        raise _Unfit(f"{name} is a {type(module).__name__}; adapters of it are not supported")
    if b is None:
        raise _Unfit(f"{name} lacks lora_B")
    if ends_with_part(name, config.replaced):
        raise _Unfit(f"{name} is changed, and its config replaces it as well")
    rank = int(a.shape[0]) if a.ndim else 0
    if not rank or a.shape != (rank, sizes[0]) or b.shape != (sizes[1], rank):
        raise _Unfit(
            f"{name}: lora_A is {_by(a.shape)} and lora_B {_by(b.shape)}; the base's module has "
            f"{sizes[0]} inputs and {sizes[1]} outputs"
        )
    if rank > max_rank:
        raise _Unfit(f"{name} has rank {rank}, above spec.adapters.maxRank {max_rank}")
    dtype = module.weight.dtype
    scaled = b.float() * config.scaling(name, rank)
    pair = LowRank(a.T.to(dtype).contiguous(), scaled.T.to(dtype).contiguous())
    if not all(bool(torch.isfinite(one).all()) for one in pair):
        raise _Unfit(f"{name} has numbers too large for {dtype} with its scaling")
    return pair


def ends_with_part(module: str, names: tuple[str, ...]) -> bool:
    """Whether the module is one of these, or inside one of them."""
    parts = module.split(".")
    return any(ends_with(".".join(parts[:end]), names) for end in range(1, len(parts) + 1))


def _heads(
    tensors: Mapping[str, Any], config: PeftConfig, modules: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What is left of the weights, by the modules that it replaces."""
    import torch

    found: dict[str, dict[str, Any]] = {}
    left = {key for key, tensor in tensors.items() if not _is_base(key, tensor, modules)}
    for name, module in modules.items():
        if not name or not ends_with(name, config.replaced):
            continue
        if isinstance(module, torch.nn.Embedding):
            raise _Unfit(f"{name}: own embeddings are not supported")
        found[name] = {
            own: _replacement(f"{name}.{own}", parameter, tensors)
            for own, parameter in module.named_parameters()
        }
        left -= {f"{name}.{own}" for own in found[name]}
    if left:
        raise _Unfit(f"{min(left)[:200]} is not supported, or belongs to another base")
    return found


def _is_base(key: str, tensor: Any, modules: Mapping[str, Any]) -> bool:
    """Whether it is a copy of the base's, as peft saves of a head that an adapter changes."""
    module, _, own = key.rpartition(".")
    name = module.removesuffix(_COPIED)
    if name == module or name not in modules:
        return False
    parameter = dict(modules[name].named_parameters(recurse=False)).get(own)
    if parameter is None or parameter.shape != tensor.shape:
        return False
    narrow = min(parameter.dtype, tensor.dtype, key=lambda dtype: int(dtype.itemsize))
    if not bool((parameter.to(narrow) == tensor.to(parameter.device, narrow)).all()):
        raise _Unfit(f"{name}: its {own} was trained as a whole; such changes are not supported")
    return True


def _replacement(key: str, parameter: Any, tensors: Mapping[str, Any]) -> Any:
    if key not in tensors:
        raise _Unfit(f"{key} is missing")
    given = tensors[key]
    if given.shape != parameter.shape:
        what = f"{key} is {_by(given.shape)}, and the base's {_by(parameter.shape)}"
        raise _Unfit(f"{what}; a head with another number of labels is not supported")
    return given.to(parameter.dtype, copy=True)


def _by(shape: Any) -> str:
    return " x ".join(map(str, shape)) or "a single number"
