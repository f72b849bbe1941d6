"""One forward pass, and whether what came of it is what the handler declared.

Runs on the compute thread, or takes its turn there; called by the runner for batches and by the
warm-up for examples. It answers for all rows or raises for all: finding the one row at fault is its
callers' business.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from batchedmodel_model_server.api.handler import Batch, Handler, Spec
from batchedmodel_model_server.batching.collate import Collated, Output, joined, parts
from batchedmodel_model_server.batching.declaration import Declaration
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.execution.host_arrays import to_host
from batchedmodel_model_server.execution.torch_errors import translated
from batchedmodel_model_server.sources.contents import Content

_SIZES: Final = np.dtype(np.int64)
Result = TypeVar("Result")


class Turn(Protocol):
    """Has work done where passes run."""

    def __call__(self, work: Callable[[], Result]) -> Result:
        """The result of the work, or its exception."""
        ...


def at_once(work: Callable[[], Result]) -> Result:
    """The turn of whoever is on the compute thread already."""
    return work()


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
    turn: Turn = at_once
    """How its passes get to the compute thread."""


def forward(model: LoadedModel, collated: Collated, handed_over: float) -> dict[str, Output]:
    """Every declared output on the host; raises `ForwardFailed`, `OutOfMemory`, `DeviceLost`."""
    return model.turn(lambda: _run(model, collated, handed_over))


def _run(model: LoadedModel, collated: Collated, handed_over: float) -> dict[str, Output]:
    try:
        with _inference_mode():
            return joined(
                [_pass(model, part, handed_over) for part in parts(model.declaration, collated)]
            )
    except ForwardFailed:
        raise
    except BaseException as error:
        failure = translated(error)
    # Out here: raised in there it would keep the error, its frames and their tensors.
    raise failure


def _pass(model: LoadedModel, collated: Collated, handed_over: float) -> dict[str, Output]:
    batch = Batch(
        arrays=collated.arrays,
        sizes=collated.sizes,
        rows=collated.rows,
        device=model.device,
        handed_over=handed_over,
        packed=collated.packed,
        params=collated.params,
    )
    # Fetching the outputs belongs here: a GPU reports the faults of a pass when it is awaited.
    return _outputs(model.declaration, model.handler.forward(batch), collated)


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
    known = {letter: int(sizes.max()) for letter, sizes in collated.sizes.items()}
    sizes = None
    if own is not None:
        if not isinstance(value, tuple) or len(value) != 2:
            raise ForwardFailed(f"output {name} is not a pair: a tensor and the {own} of each row")
        value, sizes = value[0], to_host(f"{name}: the {own} of a row", value[1], _SIZES)
        if sizes.shape != (collated.rows,) or sizes.min() < 0:
            raise ForwardFailed(f"output {name} does not come with one {own} for each row")
        known[own] = int(sizes.max())
    array = to_host(name, value, spec.dtype)
    packed = collated.packed is not None and own is None and bool(spec.letters)
    if packed:
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
