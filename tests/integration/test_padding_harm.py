"""Models that padding harms are found out, whoever wrote them, and served rightly all the same."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from batchedmodel_model_server.api.batch import Array, Batch
from batchedmodel_model_server.api.handler import Handler, Spec
from batchedmodel_model_server.batching.declaration import Sharing
from batchedmodel_model_server.batching.items import collate, examine, split
from batchedmodel_model_server.execution.forward import forward
from batchedmodel_model_server.profiling.self_test import with_sharing
from support.model_server_handlers import arrays_of, batch_of, loaded

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WIDTH = 4


class Layered(Handler):
    """A stack of layers over the time steps of each item."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L", WIDTH), max=200)}
    outputs: Mapping[str, Spec] = {"y": Spec("FP32", ("L", WIDTH))}

    def __init__(self, *layers: Any) -> None:
        torch.manual_seed(0)
        self._layers = torch.nn.Sequential(*(make() for make in layers)).eval()

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        return {"y": self._layers(batch["x"].transpose(1, 2)).transpose(1, 2)}


class Recurrent(Layered):
    """Reads each item in both directions."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._cells = torch.nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True).eval()

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        return {"y": self._cells(batch["x"])[0]}


class Attentive(Layered):
    """Attention over the time steps, which sees the padding unless it is told."""

    def __init__(self, *, masked: bool) -> None:
        torch.manual_seed(0)
        self._masked = masked
        self._layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True).eval()

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        mask = ~batch.mask("L") if self._masked else None
        return {"y": self._layer(batch["x"], src_key_padding_mask=mask)}


def convolution() -> Any:
    return torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)


def group_norm() -> Any:
    return torch.nn.GroupNorm(2, WIDTH)


HANDLERS = {
    "one convolution": (Layered(convolution), Sharing.PADDED),
    "two convolutions": (Layered(convolution, torch.nn.ReLU, convolution), Sharing.APART),
    "group norm": (Layered(group_norm), Sharing.APART),
    "both directions": (Recurrent(), Sharing.APART),
    "attention with a mask": (Attentive(masked=True), Sharing.PADDED),
    "attention without a mask": (Attentive(masked=False), Sharing.APART),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_a_mixed_batch_is_answered_as_its_items_alone(name: str) -> None:
    handler, sharing = HANDLERS[name]
    model = with_sharing(loaded(handler, "cpu"))
    assert model.declaration.sharing is sharing
    numbers = np.random.default_rng(1)
    items = [numbers.standard_normal((size, WIDTH), np.float32) for size in (9, 3, 30, 3, 9, 1)]

    def answers(items: list[Array]) -> list[Array]:
        examined = examine(model.declaration, batch_of(x=items))
        collated = collate(model.declaration, examined)
        (output,), _ = split(model.declaration, forward(model, collated, 0.0), examined.count)
        return arrays_of(output)

    for item, answer in zip(items, answers(items), strict=True):
        assert np.abs(answer - answers([item])[0]).max() < 1e-5
