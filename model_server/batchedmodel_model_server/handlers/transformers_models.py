"""Loads transformers' models, and runs its text encoders padded or packed.

All contact with transformers but for the attention function and GGUF files is here. The token
vectors come out one text behind the other in either case; what is made of them is the tasks'
business.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from batchedmodel_contract.inference.description import Classification, TextInput
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.source import GGUF_SUFFIX
from batchedmodel_model_server.api.adapters import AdapterBounds
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.generator import Generator
from batchedmodel_model_server.api.handler import PARAMETERS, Spec
from batchedmodel_model_server.api.weights import on_device, weightless
from batchedmodel_model_server.errors import CannotLoad, words
from batchedmodel_model_server.handlers import packed_attention
from batchedmodel_model_server.handlers.checkpoint import SERVED
from batchedmodel_model_server.handlers.gguf_models import dequantised
from batchedmodel_model_server.lora.layers import AdapterBank
from batchedmodel_model_server.machine import read_processor
from batchedmodel_model_server.sources.untrusted_files import check_folder

TOKENS: Final = "input_ids"
SEGMENTS: Final = "token_type_ids"
_INPUTS: Final = {"text": TOKENS, "image": "pixel_values"}
"""By what transformers calls a modality, the tensor that has it."""
PRECISIONS: Final[Mapping[str, str]] = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
"""By the name of torch's dtype, what `Handler.precision` calls it."""
_AUTO: Final = "auto"
_CLASSES: Final = (
    "transformers",
    "transformers.masking_utils",
    "transformers.modeling_utils",
    "transformers.models.auto",
)
COMPILER: Final = "torch._dynamo"
_RELATIVE_SEGMENTS: Final[Mapping[str, int]] = {"xlnet": 3}
"""By the kind of model, how many segments a text may have where the config does not say it: one for
each text, and one for the token that stands for all."""
_MARKS: Final = ("disable", "allow_in_graph", "assume_constant_result")
_TRACING: Final = f"{COMPILER}._trace_wrapped_higher_order_op"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and in what a model computes: names that torch knows."""

    device: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A loaded model as a handler's declaration, whose fields these are, and its forward pass."""

    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    run: Callable[[Batch], Mapping[str, Any]]
    packs: bool = False
    text: TextInput | None = None
    tokenizer: bytes | None = field(default=None, repr=False)
    embedding: str | None = None
    shortest_embedding: int | None = None
    classification: Classification | None = None
    ranking: str | None = None
    generator: Generator | None = field(default=None, repr=False)
    bank: AdapterBank | None = field(default=None, repr=False)


def import_transformers() -> ModuleType:
    """transformers with its model classes, without the parts of torch that this server never uses.

    transformers imports torch's compiler for one name, and the tensors of several machines to ask
    whether a model is such. Both, and sympy with them, take as long as the rest of transformers
    (a second; docs/adr/0029). What has been imported before stays as it is.
    """
    try:
        with _without_compiler():
            _import_classes()
    except (ImportError, AttributeError):
        # Another version of transformers wants more of the compiler.
        _import_classes()
    return sys.modules["transformers"]


def _import_classes() -> None:
    import torch
    from transformers.utils.import_utils import is_torch_distributed_available

    real = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        # It remembers the answer, so that all parts of transformers hear the same.
        is_torch_distributed_available()
    finally:
        torch.distributed.is_available = real
    for name in _CLASSES:
        importlib.import_module(name)


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Within it modules stand in for the compiler, unless it has been imported before."""
    if COMPILER in sys.modules:
        yield
        return
    compiler, tracing = ModuleType(COMPILER), ModuleType(_TRACING)
    compiler.__path__ = []

    def put_back() -> None:
        for module in (compiler, tracing):
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]

    def real(*args: Any, **kwargs: Any) -> Any:
        put_back()
        return importlib.import_module(_TRACING).TransformGetItemToIndex(*args, **kwargs)

    vars(compiler).update(dict.fromkeys(_MARKS, _unmarked))
    vars(tracing)["TransformGetItemToIndex"] = real
    sys.modules.update({COMPILER: compiler, _TRACING: tracing})
    try:
        yield
    finally:
        put_back()


def _unmarked(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The function as it is; also for a mark that is given its function in a second call."""
    return _unmarked if function is None else function


def chosen_dtype(given: str, *, has_bfloat16: bool) -> str:
    """The name of the dtype to compute in; raises `InvalidInput`.

    `auto` is bfloat16 where the device has instructions for it, as every model trained in this
    decade bears that and it halves memory and time. Elsewhere it would be slower than float32.
    """
    if given in PRECISIONS:
        return given
    if given != _AUTO:
        rule = f"is not one of {', '.join([_AUTO, *PRECISIONS])}"
        raise InvalidInput(f"{PARAMETERS}.dtype", rule, given)
    return "bfloat16" if has_bfloat16 else "float32"


def has_bfloat16(device: str) -> bool:
    """Whether the device computes in bfloat16 by itself."""
    if not device.startswith("cuda"):
        return read_processor().bfloat16
    import torch

    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def load_model(kind: str, folder: Path, place: Place, spare: str | None = None) -> tuple[Any, bool]:
    """The model that transformers' class of this name makes of the folder; raises `CannotLoad`.

    Weights whose names begin with `spare` may be missing; the second value says whether any is.
    """
    import torch
    from safetensors import SafetensorError

    check_folder(folder)
    transformers = import_transformers()
    logging = transformers.utils.logging
    # Progress bars would run through the log, and failures come as exceptions.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # What it says goes the way of all other lines, in their form.
    logging.disable_default_handler()
    logging.enable_propagation()
    made = getattr(transformers, kind, None)
    if made is None:
        raise CannotLoad(f"config.json: transformers has no class {kind}")
    how: dict[str, Any] = {"pretrained_model_name_or_path": folder, "use_safetensors": True}
    try:
        with weightless():
            if gguf := next(folder.glob(f"*{GGUF_SUFFIX}"), None):
                config = made.config_class.from_pretrained(folder)
                with torch.device("meta"):
                    skeleton = made(config)
                weights = dequantised(gguf, skeleton, place.dtype)
                how |= {"pretrained_model_name_or_path": None, "config": config}
                how["state_dict"] = weights
            how |= {"dtype": getattr(torch, place.dtype), "output_loading_info": True}
            how |= {"local_files_only": True, "trust_remote_code": False}
            model, info = made.from_pretrained(**how, ignore_mismatched_sizes=True)
    except CannotLoad:
        raise
    except Exception as error:
        # Its configs raise what a wrong value leads to, such as a division by zero.
        told = isinstance(error, (OSError, ValueError, ImportError, RuntimeError, SafetensorError))
        raise CannotLoad(f"{folder} cannot be loaded: {words(error, named=not told)}") from error
    for name, found, wanted in sorted(info["mismatched_keys"]):
        rule = f"{name} has the shape {list(found)}, and {list(wanted)} by config.json"
        raise CannotLoad(f"{folder} cannot be loaded: {rule}")
    # transformers fills what it does not find with random numbers, and would serve nonsense.
    missing = sorted(key for key in info["missing_keys"] if not spare or not key.startswith(spare))
    if missing:
        raise CannotLoad(f"{folder} lacks weights: {', '.join(missing[:5])}")
    return on_device(model.eval(), place.device), bool(info["missing_keys"])


def check_input(architecture: str, wanted: str) -> None:
    """Raise `CannotLoad` for a class that takes something else: sounds, or images beside texts."""
    made = getattr(import_transformers(), architecture, None)
    # A class that transformers does not have is refused where it is loaded.
    takes = getattr(made, "input_modalities", wanted)
    kinds = [takes] if isinstance(takes, str) else list(takes)
    tensor = getattr(made, "main_input_name", _INPUTS[wanted])
    # Some classes for images are said to take texts, as those are that say nothing.
    if tensor != _INPUTS[wanted] or (wanted == "text" and kinds != [wanted]):
        rule = f"takes {tensor} ({' and '.join(kinds)}), not {_INPUTS[wanted]} ({wanted}) alone"
        raise CannotLoad(f"config.json: {architecture} {rule}; {SERVED}")


def bank_of(model: Any, bounds: AdapterBounds | None, labels: int | None) -> AdapterBank | None:
    """Slots for adapters of a whole model, before its parts are moved; None where none are asked.

    `labels`: how many it has; None where it classifies nothing.
    """
    if bounds is None:
        return None
    return AdapterBank(dict(model.named_modules()), bounds, labels=labels)


class Encoder:
    """A text model without its head."""

    def __init__(self, model: Any, device: str, *, packs: bool = True) -> None:
        self._model = model
        self._device = device
        self._arguments = frozenset(inspect.signature(model.forward).parameters)
        # Models of RoBERTa's family count positions from behind the padding index.
        table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        self._first_position = 0 if padding is None else int(padding) + 1
        self.hidden_size = int(model.config.hidden_size)
        self.packs = packs and "position_ids" in self._arguments and packed_attention.use(model)
        """Whether it may be tried packed; whether its answers stay the same is not known here."""

    @property
    def segments(self) -> int:
        """How many texts of a pair or list it can tell apart by token types; 0 when none."""
        config = self._model.config
        kinds = getattr(config, "type_vocab_size", _RELATIVE_SEGMENTS.get(config.model_type)) or 0
        return kinds if SEGMENTS in self._arguments and kinds > 1 else 0

    @property
    def positions(self) -> int | None:
        """How many tokens it has positions for; None when its config sets no bound."""
        bound = getattr(self._model.config, "max_position_embeddings", None)
        # XLNet's config says -1.
        return None if bound is None or bound < 0 else int(bound) - self._first_position

    def padded(self, batch: Batch) -> dict[str, Any]:
        """The model's arguments for texts that are padded."""
        inputs = {name: batch[name] for name in (TOKENS, SEGMENTS) if name in batch}
        return {**inputs, "attention_mask": batch.mask("L").long()}

    def states(self, batch: Batch) -> Any:
        """The token vectors of all texts: 1 x total x hidden packed, rows x longest x hidden."""
        row = batch.packed()
        if row is None:
            return self._model(**self.padded(batch)).last_hidden_state
        inputs = {name: row[name] for name in (TOKENS, SEGMENTS) if name in batch}
        positions = row.positions + self._first_position
        with packed_attention.packed(row, self._device):
            return self._model(**inputs, position_ids=positions).last_hidden_state
