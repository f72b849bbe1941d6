"""Rows are as long as the model server counts them."""

from dataclasses import replace

import pytest

from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.rows import rows_of_tensors

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


def test_high_images_and_wide_ones_share_no_batch_which_would_be_padded_to_both() -> None:
    model = ReadyModel(description=IMAGES, profile=None, tokens=None, depth=1, rows_pad=True)

    def key(height: int, width: int) -> object:
        call = model.call_of(rows_of_tensors([image(height, width)], IMAGES))
        return call.key_of(call.rows[0])

    assert key(16, 1) != key(1, 16)
    assert key(9, 9) == key(9, 9)
    assert key(8, 15) == key(15, 8) == key(9, 9), "of at most twice the size"


def test_rows_that_are_ragged_in_one_direction_share_batches_whatever_their_length() -> None:
    spec = TensorSpec(name="x", datatype=Datatype.UINT8, shape=(RAGGED, 3), max_length=16)
    description = replace(IMAGES, inputs=(spec,))
    model = ReadyModel(description=description, profile=None, tokens=None, depth=1, rows_pad=True)
    tensors = (Tensor("x", Datatype.UINT8, (1, size, 3), bytes(size * 3)) for size in (1, 16))
    calls = [model.call_of(rows_of_tensors([tensor], description)) for tensor in tensors]
    assert len({call.key_of(call.rows[0]) for call in calls}) == 1
