"""One forward pass, and whether what came of it is what the handler declared.

Called by the runner for batches and by the warm-up for examples. It answers for all rows or raises
for all: its callers find the row at fault. Outputs are brought to the host here, because a pass
must be over before the next one may write to the same memory.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from batchedmodel_model_server.api.batch import Array
from batchedmodel_model_server.api.handler import Batch, Handler, Spec
from batchedmodel_model_server.batching.declaration import Declaration
from batchedmodel_model_server.batching.items import Answered, Collated, Output, parts
from batchedmodel_model_server.errors import ForwardFailed, translating
from batchedmodel_model_server.execution.compute_threads import COMPUTE_THREADS
from batchedmodel_model_server.sources.folder import Content

_SIZES: Final = np.dtype(np.int64)
_HALVES: Final = 4  # bytes: below it torch has datatypes that numpy does not know
_FITTING: Final = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
"""By the kind that is declared, the kinds that may be given: a float is no integer, even if whole,
and what is complex or a text is no number."""
Pass = Callable[[], list[Answered]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A handler that is ready to run."""

    handler: Handler
    declaration: Declaration
    device: str
    idempotent: bool = True
    """Whether an item may be run again after its batch failed."""
    content: Content = Content()
    """What it was loaded from."""
    turn: Callable[[Pass], list[Answered]] | None = None
    """Hands passes over to the compute thread; None where they run on it already."""


def forward(model: LoadedModel, collated: Collated, handed_over: float) -> list[Answered]:
    """Every declared output on the host, of each part that the items may share a pass in.

    Raises `ForwardFailed`, `OutOfMemory`, `DeviceLost`.
    """
    work = partial(translating, partial(_run, model, collated, handed_over))
    return work() if model.turn is None else model.turn(work)


def timed(model: LoadedModel, collated: Collated, clock: Callable[[], float]) -> float:
    """Seconds of a pass that answers nobody; raises as `forward` does."""
    began = clock()
    forward(model, collated, began)
    return clock() - began


def _run(model: LoadedModel, collated: Collated, handed_over: float) -> list[Answered]:
    with _inference_mode(), COMPUTE_THREADS.computing(model.device):
        return [_pass(model, part, handed_over) for part in parts(model.declaration, collated)]


def _pass(model: LoadedModel, collated: Collated, handed_over: float) -> Answered:
    slots = collated.adapters
    if slots is not None and not slots.any():
        slots = None  # none of this part's rows has an adapter
    batch = Batch(
        arrays=collated.arrays,
        sizes=collated.sizes,
        rows=collated.rows,
        device=model.device,
        handed_over=handed_over,
        packed=collated.packed,
        params=collated.params,
        adapters=slots,
    )
    # Fetching the outputs belongs here: a GPU reports the faults of a pass when it is awaited.
    outputs = _outputs(model.declaration, model.handler.forward(batch), collated)
    return Answered(outputs, collated.sizes, collated.items)


def _inference_mode() -> AbstractContextManager[object]:
    """No graph for gradients is kept. What never imported torch does not need it for this."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.inference_mode()


def _outputs(declaration: Declaration, given: Any, collated: Collated) -> dict[str, Output]:
    if not isinstance(given, Mapping) or set(given) != set(declaration.outputs):
        found = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise ForwardFailed(f"the model answered {found}, not {', '.join(declaration.outputs)}")
    return {
        name: _output(name, spec, given[name], collated)
        for name, spec in declaration.outputs.items()
    }


def _output(name: str, spec: Spec, value: Any, collated: Collated) -> Output:
    own = next((letter for letter in spec.letters if letter not in collated.sizes), None)
    known = dict(collated.largest)
    sizes = None
    if own is not None:
        if not isinstance(value, tuple) or len(value) != 2:
            raise ForwardFailed(f"output {name} is not a pair: a tensor and the {own} of each row")
        value, sizes = value[0], _to_host(f"{name}: the {own} of a row", value[1], _SIZES)
        if sizes.shape != (collated.rows,) or sizes.min() < 0:
            raise ForwardFailed(f"output {name} does not come with one {own} for each row")
        known[own] = int(sizes.max())
    array = _to_host(name, value, spec.dtype)
    if collated.packed is not None and own is None and spec.letters:
        length = spec.letters[0]
        inner = [size for size in spec.shape if size != length]
        expected = [int(collated.sizes[length].sum()), *inner]
        if list(array.shape) != expected:
            raise ForwardFailed(
                f"output {name} of a packed batch has the shape {list(array.shape)}, not {expected}"
            )
        return Output(array=array, packed=True)
    expected = [collated.rows, *(known[s] if isinstance(s, str) else s for s in spec.shape)]
    fits = array.ndim == len(expected) and all(
        # A lettered dimension may be padded beyond the longest item, but never cut.
        have >= need if isinstance(size, str) else have == need
        for size, have, need in zip((0, *spec.shape), array.shape, expected, strict=True)
    )
    if not fits:
        raise ForwardFailed(f"output {name} has the shape {list(array.shape)}, not {expected}")
    return Output(array=array, sizes=sizes)


def _to_host(field: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """The values in memory of their own; raises `ForwardFailed` for what the datatype cannot hold.

    A handler may write its next answers to the same memory while these are still being sent. What
    came from a device or was cast is a copy already.
    """
    is_copy = False
    if hasattr(value, "detach"):
        tensor = value.detach()
        is_copy = tensor.device.type != "cpu"
        value = tensor.cpu()
        if value.is_floating_point() and value.element_size() < _HALVES:
            value, is_copy = value.float(), True
        value = value.numpy()
    array: Array = np.asarray(value)
    _check_fits(field, array, dtype)
    return array.astype(dtype, copy=not is_copy)


def _check_fits(field: str, array: Array, dtype: np.dtype[Any]) -> None:
    if array.size == 0 or array.dtype == dtype:
        return
    declared = dtype.kind
    if array.dtype.kind not in _FITTING[declared]:
        raise ForwardFailed(
            f"output {field} is {array.flat[0]!s} ({array.dtype}) at its first place, which is "
            f"not of the declared {dtype}; cast it in forward"
        )
    if declared == "f" or np.can_cast(array.dtype, dtype):
        return
    least, largest = (0, 1) if declared == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for value in (int(array.min()), int(array.max())):
        if not least <= value <= largest:
            raise ForwardFailed(
                f"output {field} holds {value}, which is not within {least} to {largest}, as the "
                f"declared {dtype} is"
            )
