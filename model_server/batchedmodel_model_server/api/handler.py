"""What a handler is: a declaration of its tensors and one method.

    class Anomaly(Handler):
        inputs = {"x": Spec("FP32", ("L", 4), max=512)}
        outputs = {"score": Spec("FP32", ("L",))}

        def load(self, path, device):
            self.net = ...

        def forward(self, batch):
            return {"score": self.net(batch["x"]).squeeze(-1)}

This module is what people import who write one. It must stay importable without torch, which is
touched only when a handler asks for a tensor.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np

from batchedmodel_contract.inference.description import Classification, CostRule, TextInput
from batchedmodel_contract.inference.params import Param
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_model_server.api.adapters import AdapterBounds, Adapters
from batchedmodel_model_server.api.batch import Array, Batch, Packed, Params
from batchedmodel_model_server.api.generator import CacheSettings, Generator

__all__ = [
    "DTYPES",
    "PARAMETERS",
    "Array",
    "Batch",
    "Classification",
    "CostRule",
    "Handler",
    "Invalid",
    "Packed",
    "Param",
    "Params",
    "Spec",
    "TextInput",
]

DTYPES: Final[Mapping[Datatype, np.dtype[Any]]] = {
    Datatype.BOOL: np.dtype("?"),
    Datatype.UINT8: np.dtype("u1"),
    Datatype.UINT16: np.dtype("<u2"),
    Datatype.UINT32: np.dtype("<u4"),
    Datatype.UINT64: np.dtype("<u8"),
    Datatype.INT8: np.dtype("i1"),
    Datatype.INT16: np.dtype("<i2"),
    Datatype.INT32: np.dtype("<i4"),
    Datatype.INT64: np.dtype("<i8"),
    Datatype.FP16: np.dtype("<f2"),
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP64: np.dtype("<f8"),
}
"""Every datatype that a device can hold; BYTES is not among them."""

PARAMETERS: Final = "spec.model.parameters"
"""The manifest's field that holds a handler's parameters: complaints name it."""


class Invalid(ValueError):
    """Raised by `Handler.check` to refuse one item; the other items of its batch still run.

    The caller of that item gets status 400 with the text: `raise Invalid("x: rows of zeros")`.
    """


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor of one item, without batch dimension.

    Raises `ValueError` when the declaration contradicts itself.
    """

    datatype: str
    """BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32 or FP64."""
    shape: tuple[int | str, ...]
    """Sizes. Each is a number, or a letter for a dimension that differs from item to item; equal
    letters are equal sizes within an item, inputs and outputs alike. `()` is one number."""
    pad: float = 0
    """What fills shorter items up where a batch is padded. `batch.mask` says where it stands."""
    max: int | None = None
    """The longest that each lettered size may be; an input that has letters needs it."""
    vocab: int | None = None
    """Bounds integers to 0 .. vocab - 1, as for an embedding table: others get status 400."""
    min: int = 1
    """The shortest that each lettered size may be, for models that fail on what is very short, as
    a convolution without padding does."""

    def __post_init__(self) -> None:
        if self.datatype not in DTYPES:
            raise ValueError(f"datatype {self.datatype!r} is not one of {', '.join(DTYPES)}")
        shape: Any = self.shape
        if not isinstance(shape, tuple):
            raise ValueError(f"shape {shape!r} is not a tuple; of one size it is ('L',) or (4,)")
        for size in shape:
            is_number = type(size) is int and size >= 1
            if not (size.isidentifier() if isinstance(size, str) else is_number):
                raise ValueError(f"shape {self.shape}: {size!r} is neither a letter nor above 0")
        if self.max is not None and (self.max < 1 or not self.letters):
            raise ValueError(f"max {self.max} needs a lettered dimension and a value above 0")
        if self.min != 1 and (self.min < 1 or not self.letters):
            raise ValueError(f"min {self.min} needs a lettered dimension and a value above 0")
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.vocab is not None and (self.vocab < 1 or self.dtype.kind not in "iu"):
            raise ValueError(f"vocab {self.vocab} needs an integer datatype and a value above 0")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The datatype as numpy's."""
        return DTYPES[Datatype(self.datatype)]

    @property
    def letters(self) -> tuple[str, ...]:
        """The lettered dimensions, in order."""
        return tuple(size for size in self.shape if isinstance(size, str))


class Handler:
    """Base of all handlers. The class is made without arguments, then `load` is called once.

    A handler needs `inputs`, `outputs` and `forward`; everything else has a default. `load` may set
    the declaration on the instance when it depends on the model's files. All methods but `check`
    run on the one compute thread.
    """

    inputs: Mapping[str, Spec]
    """The tensors of one item, by name."""
    outputs: Mapping[str, Spec]
    """The tensors of one answer, by name. A letter of an input is that item's size; an output with
    a letter of its own, as of the boxes that a detector finds, has a size that `forward` gives."""
    params: Mapping[str, Param] = MappingProxyType({})
    """What each request may set for its own items, which `forward` finds in `batch.params`."""
    cost_rule: CostRule = CostRule.PADDED
    """What a batch costs: rows x the longest item, or rows alone (`CostRule.ROWS`) where all items
    take the same time whatever their length. A handler that `packs` need not say so."""
    packs: bool = False
    """Whether `forward` can take `batch.packed()`. All lettered inputs then have one and the same
    letter, and it is their first size."""
    precision: str = "FP32"
    """What the model computes in: FP32, BF16 or FP16. It says how far answers in a batch may be
    from those alone before the self-test finds that padding or packing changes them."""
    idempotent: bool = True
    """Whether an item may be run again after its batch failed. False for what is not pure: no item
    is then run twice, and all items of a failed pass fail."""
    platform: str = "pytorch"
    """What the metadata call it."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Modules that `load` imports. Named here they are imported before it, so that the report on a
    start tells their time from that of the model's own files."""
    parameter_names: ClassVar[tuple[str, ...]] = ()
    """What `spec.model.parameters` may hold, the manifest's; other names are refused."""
    parameters: Mapping[str, str]
    """What it does hold; set before `load`."""
    trusted: bool = False
    """Whether the manifest trusts the model's files, so that `load` may read pickles."""
    text: TextInput | None = None
    """By which input callers may send texts: `TextInput(name="text", tokens="input_ids",
    max_tokens=512)`. The sidecar makes the tokens; `forward` sees them alone."""
    tokenizer: bytes | None = None
    """The tokenizer.json by which callers turn text into `text.tokens`."""
    embedding: str | None = None
    """The output that answers embedding requests."""
    shortest_embedding: int | None = None
    """Least number of dimensions to which callers may have embeddings cut; None: they may not."""
    classification: Classification | None = None
    """The output that answers classification requests, and its labels; where it has a row for each
    token, callers are told the label of each."""
    ranking: str | None = None
    """The output that ranks pairs of texts: one raw score for each."""
    generator: Generator | None = None
    """What generates text; None where the model generates none."""
    cache: CacheSettings = CacheSettings()
    """What the manifest asks of a generator's cache; set before `load`."""
    adapters: AdapterBounds | None = None
    """How many adapters the model may have at once; set before `load`. None: it has none."""
    bank: Adapters | None = None
    """Where they are put; None for a handler that takes none."""

    def device(self) -> str:
        """Where to run; asked once, before `load`."""
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def import_libraries(self) -> None:
        """Import what `libraries` names; for handlers that do it in a way of their own."""
        for name in self.libraries:
            importlib.import_module(name)

    def load(self, path: Path | None, device: str) -> None:
        """Read the weights. `path` is the source's folder, None when the manifest has no source."""

    def check(self, item: Mapping[str, Array]) -> None:
        """Raise `Invalid` to refuse one item for a reason that a `Spec` cannot express.

        Called off the compute thread, once for each item, with its tensors by name, unpadded and
        without batch dimension. What else it raises fails this item alone, with status 500.
        """

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Every declared output, torch or numpy, row i for item i.

        An output with an input's letter is padded as that input was, and trimmed afterwards; of a
        packed batch it is total x its other sizes. One with a letter of its own is a pair: the
        padded tensor and each row's size, as `{"boxes": (boxes, [3, 0, 7])}`. Runs in torch's
        inference mode.
        """
        raise NotImplementedError

    def predicted_seconds(self, rows: int, length: int) -> float | None:
        """How long a forward pass takes, for a handler that knows without trying."""
        return None

    def unload(self) -> None:
        """Give back what `load` took beside memory, such as files, threads and subprocesses.

        Called once, when nothing more will be asked; the server waits five seconds for it.
        """
