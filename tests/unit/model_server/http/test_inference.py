"""Plain v2 requests as batches, and the answers as rectangles again."""

from array import array

import pytest

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.inference.ragged import Ragged
from batchedmodel_contract.inference.tensors import Datatype, Shape, Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.spec import MAX_BATCH_SIZE
from batchedmodel_model_server.errors import RowFailed
from batchedmodel_model_server.http.inference import is_batch, items_as_rows, rows_as_items


def tensor(name: str, shape: Shape, values: list[int]) -> Tensor:
    data = array("q", values).tobytes()
    return Tensor(name=name, datatype=Datatype.INT64, shape=shape, data=data)


def reply(statuses: tuple[int, ...], shapes: tuple[Shape, ...], values: list[int]) -> BatchReply:
    data = array("q", values).tobytes()
    output = Ragged(name="y", datatype=Datatype.INT64, shapes=shapes, parts=(data,))
    return BatchReply(
        outputs=(output,),
        statuses=statuses,
        errors=tuple("" if status == 200 else f"error {status}" for status in statuses),
        compute_seconds=0,
        queue_seconds=0,
        tokens=0,
        padded_tokens=0,
    )


def every_output(name: str) -> bool:
    return True


def test_a_tensor_of_shapes_makes_a_request_a_batch() -> None:
    assert is_batch([tensor("x", (1,), [1]), tensor("x:shapes", (1, 1), [1])])
    assert not is_batch([tensor("x", (1,), [1])])


def test_rows_become_items() -> None:
    (ragged,) = rows_as_items([tensor("x", (2, 3), [1, 2, 3, 4, 5, 6])]).inputs
    assert ragged.shapes == ((3,), (3,))
    assert [memoryview(item).cast("q").tolist() for item in ragged.items()] == [
        [1, 2, 3],
        [4, 5, 6],
    ]


@pytest.mark.parametrize("shape", [(), (0, 3), (10**12, 0)], ids=["rank 0", "no rows", "no width"])
def test_rows_that_hold_nothing_are_refused(shape: Shape) -> None:
    with pytest.raises(InvalidInput, match="has no rows that hold a value"):
        rows_as_items([tensor("x", shape, [1] if shape == () else [])])


def test_items_become_rows_again() -> None:
    (output,) = items_as_rows(reply((200, 200), ((2,), (2,)), [1, 2, 3, 4]), every_output)
    assert output == tensor("y", (2, 2), [1, 2, 3, 4])


def test_only_the_outputs_asked_for_are_answered() -> None:
    assert items_as_rows(reply((200,), ((1,),), [1]), lambda name: name == "z") == []


def test_one_failed_row_fails_a_plain_request() -> None:
    with pytest.raises(RowFailed, match="row 1: error 400") as caught:
        items_as_rows(reply((200, 400), ((1,), (0,)), [1]), every_output)
    assert caught.value.status == 400


def test_rows_of_differing_shapes_have_no_plain_form() -> None:
    with pytest.raises(InvalidInput, match="differs in shape from row to row"):
        items_as_rows(reply((200, 200), ((1,), (2,)), [1, 2, 3]), every_output)


def test_more_rows_than_a_batch_may_have_are_refused() -> None:
    rows = MAX_BATCH_SIZE + 1
    with pytest.raises(InvalidInput, match=f"x: holds {rows} items; a batch has at most 4096"):
        rows_as_items([tensor("x", (rows,), [1] * rows)])
