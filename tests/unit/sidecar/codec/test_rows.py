"""Rows are as long as the model server counts them."""

import pytest

from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.codec.rows import rows_of_tensors

IMAGES = ModelDescription(
    name="m",
    version="1",
    platform="p",
    inputs=(
        TensorSpec(name="x", datatype=Datatype.UINT8, shape=(RAGGED, RAGGED, 3), max_length=16),
    ),
    outputs=(),
    cost_rule=CostRule.PADDED,
)


def image(height: int, width: int) -> Tensor:
    shape = (1, height, width, 3)
    return Tensor(name="x", datatype=Datatype.UINT8, shape=shape, data=bytes(height * width * 3))


def test_an_image_is_as_long_as_it_has_pixels_and_each_side_is_bounded() -> None:
    (row,) = rows_of_tensors([image(16, 9)], IMAGES)
    assert row.length == 16 * 9
    with pytest.raises(InvalidInput, match="longer than the model takes"):
        rows_of_tensors([image(2, 17)], IMAGES)
