"""The products of adapters on a device whose numbers the host cannot read."""

import numpy as np
import pytest

from batchedmodel_model_server.api.adapters import AdapterBounds, AdapterWeights, LowRank
from batchedmodel_model_server.lora.layers import AdapterBank

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_groups_of_unequal_size_are_added_without_waiting_for_the_device() -> None:
    # A mask asks the device how many rows it has, twice in each module of each step.
    layer = torch.nn.Linear(6, 10, device="meta")
    bank = AdapterBank({"layer": layer}, AdapterBounds(slots=2, max_rank=4))
    pair = LowRank(torch.empty(6, 4), torch.empty(4, 10))
    for slot in (1, 2):
        bank.put(slot, AdapterWeights(modules={"layer": pair}, heads={}))
    tokens = np.array([1, 0, 2, 0, 1, 2, 1])
    with torch.inference_mode(), bank.using({(1, 7): tokens}):
        assert layer(torch.empty(1, 7, 6, device="meta")).shape == (1, 7, 10)
