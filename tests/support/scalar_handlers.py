"""Handlers of numbers without dimensions, alone and beside lettered inputs. Without torch."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from batchedmodel_model_server.api.handler import Batch, Spec
from support.model_server_handlers import OnHost

KINDS: Final = 10
"""So many values `kind` has; others are no valid item."""
POISON: Final = 77777.0
"""The scale with which a pass raises."""
_ANSWERS: Final[Mapping[str, Spec]] = {"value": Spec("FP32", ()), "kind": Spec("INT64", ())}


def answer(scale: float, kind: int, numbers: list[int] | None = None) -> tuple[float, int]:
    """What an item gets."""
    return scale * (1 if numbers is None else sum(numbers)) + kind, kind


class Scalars(OnHost):
    """Has no input with dimensions."""

    inputs: Mapping[str, Spec] = {"scale": Spec("FP32", ()), "kind": Spec("INT64", (), vocab=KINDS)}
    outputs: Mapping[str, Spec] = _ANSWERS

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Compute."""
        scale, kind = batch.array("scale"), batch.array("kind")
        if (scale == POISON).any():
            raise ValueError("poison")
        return {"value": scale * self.sums(batch) + kind, "kind": kind}

    def sums(self, batch: Batch) -> Any:
        """What each row's scale is multiplied by."""
        return 1


class Padded(Scalars):
    """Beside them it has a list of numbers, which may be padded."""

    inputs: Mapping[str, Spec] = {
        "x": Spec("INT64", ("L",), pad=0, max=200, vocab=1000),
        **Scalars.inputs,
    }
    outputs: Mapping[str, Spec] = {**_ANSWERS, "y": Spec("INT64", ("L",))}

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Compute, and echo the list."""
        packed = batch.packed()
        y = batch.array("x") if packed is None else packed.array("x")
        return {**super().forward(batch), "y": y}

    def sums(self, batch: Batch) -> Any:
        """Of the lists."""
        return batch.array("x").sum(1)


class Packed(Padded):
    """Takes the lists packed too."""

    packs = True

    def sums(self, batch: Batch) -> Any:
        """Of the lists."""
        packed = batch.packed()
        if packed is None:
            return super().sums(batch)
        ends = np.cumsum(batch.lengths)
        return np.array([one.sum() for one in np.split(packed.array("x"), ends[:-1])])


class Apart(Padded):
    """Takes padding for numbers, so that only lists of one length share a pass."""

    inputs: Mapping[str, Spec] = {
        **Padded.inputs,
        "x": Spec("INT64", ("L",), pad=999, max=200, vocab=1000),
    }
