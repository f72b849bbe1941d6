"""Every item is judged alone, before it touches another."""

import numpy as np
import pytest

from batchedmodel_contract.inference.batch import (
    BatchRequest,
    Ragged,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.handler import Spec
from batchedmodel_model_server.batching.declaration import Declaration, declaration_of
from batchedmodel_model_server.batching.items import examine
from support.model_server_handlers import Giving, batch_of


def declared(**inputs: Spec) -> Declaration:
    return declaration_of(Giving({}, {"y": Spec("FP32", ())}, inputs))


IDS = declared(ids=Spec("INT64", ("L",), max=4, vocab=10))
VECTORS = declared(v=Spec("FP32", ("L", 2), max=4))
TWO = declared(a=Spec("INT64", ("L",), max=9), b=Spec("FP32", ("L",), max=9))
HALVES = declared(v=Spec("FP16", ("L",), max=4))
UNSIGNED = declared(ids=Spec("UINT8", ("L",), max=4, vocab=10))
WIDE = declared(v=Spec("FP32", ("L",), max=4, min=3))
BOOL = declared(flags=Spec("BOOL", (2,)))


@pytest.mark.parametrize(
    ("declaration", "inputs", "fault"),
    [
        (IDS, {"ids": [[1], [1, 10], [9]]}, "ids[1]: 10 is not within 0 to 9"),
        (IDS, {"ids": [[1], [-1, 99], [9]]}, "ids[0]: -1 is not within 0 to 9"),
        (IDS, {"ids": [[1], [1] * 5, [9]]}, "ids: [5] has size 5 in L, above the maximum 4"),
        (
            IDS,
            {"ids": [[1], np.zeros(0, np.int64), [9]]},
            "ids: [0] has size 0 in L, below the minimum 1",
        ),
        (
            WIDE,
            {"v": [np.ones(3, "f4"), np.ones(2, "f4"), np.ones(4, "f4")]},
            "v: [2] has size 2 in L, below the minimum 3",
        ),
        (
            VECTORS,
            {"v": [np.ones((1, 2), "f4"), np.ones((1, 3), "f4"), np.ones((2, 2), "f4")]},
            "v: [1, 3] does not have the shape [L, 2]",
        ),
        (
            VECTORS,
            {"v": [np.ones((1, 2), "f4"), np.array([[1, np.nan]], "f4"), np.ones((2, 2), "f4")]},
            "v[1]: NaN is not a finite number",
        ),
        (
            VECTORS,
            {"v": [np.ones((1, 2), "f4"), np.array([[np.inf, 1]], "f4"), np.ones((2, 2), "f4")]},
            "v[0]: Infinity is not a finite number",
        ),
        (
            HALVES,
            {"v": [np.ones(1, "f2"), np.array([-np.inf], "f2"), np.ones(2, "f2")]},
            "v[0]: -Infinity is not a finite number",
        ),
        (
            UNSIGNED,
            {"ids": [np.ones(1, "u1"), np.array([1, 200], "u1"), np.ones(2, "u1")]},
            "ids[1]: 200 is not within 0 to 9",
        ),
        (
            TWO,
            {"a": [[1], [1, 2], [1]], "b": [np.ones(1, "f4"), np.ones(3, "f4"), np.ones(1, "f4")]},
            "b: [3] has size 3 in L, which is 2 before",
        ),
    ],
    ids=[
        "above vocab",
        "below vocab",
        "too long",
        "empty",
        "too short",
        "fixed size",
        "nan",
        "infinity",
        "minus infinity",
        "above vocab unsigned",
        "unequal letters",
    ],
)
def test_a_bad_item_gets_its_own_fault_and_the_others_none(
    declaration: Declaration, inputs: dict[str, list[object]], fault: str
) -> None:
    examined = examine(declaration, batch_of(**inputs))
    assert examined.faults == {1: fault}
    assert examined.valid == [0, 2]


def test_a_datatype_is_a_fault_of_every_item_that_has_it() -> None:
    examined = examine(IDS, batch_of(ids=[np.ones(1, "f4"), np.ones(2, "f4")]))
    fault = 'ids: "FP32" is not the datatype of this input, INT64'
    assert examined.faults == {0: fault, 1: fault}


def test_a_rank_is_a_fault_of_every_item_that_has_it() -> None:
    examined = examine(IDS, batch_of(ids=[[[1, 2]], [[3, 4]]]))
    fault = "ids: [1, 2] does not have the 1 dimensions of [L]"
    assert examined.faults == {0: fault, 1: fault}


def test_several_bad_items_are_found_at_once() -> None:
    examined = examine(IDS, batch_of(ids=[[10], [1, 11], [1], [12, 13], [1] * 5]))
    assert sorted(examined.faults) == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (batch_of(ids=[[1]], more=[[1]]), '"more" is not an input of this model; it takes ids'),
        (batch_of(other=[[1]]), '"other" is not an input of this model'),
        (BatchRequest(inputs=()), "inputs: lacks ids"),
        (batch_of(ids=[]), "inputs: hold no items"),
        (
            BatchRequest(
                inputs=(
                    Ragged(
                        name="ids", datatype=Datatype.INT64, shapes=((2,),), parts=(b"12345678",)
                    ),
                )
            ),
            "ids: is 8 bytes long; its shapes need 16",
        ),
        (
            BatchRequest(
                inputs=(
                    Ragged(
                        name="ids", datatype=Datatype.INT64, shapes=((2**62,),) * 9, parts=(b"",)
                    ),
                )
            ),
            "ids: is 0 bytes long; its shapes need",
        ),
    ],
    ids=["unknown input", "only unknown", "nothing", "no items", "too little data", "vast shapes"],
)
def test_what_is_no_batch_of_this_model_is_refused_whole(
    request_: BatchRequest, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        examine(IDS, request_)
    assert message in str(caught.value)


def test_inputs_that_disagree_about_the_number_of_items_are_refused() -> None:
    with pytest.raises(InvalidInput, match="disagree about the number of items"):
        examine(TWO, batch_of(a=[[1], [2]], b=[np.ones(1, "f4")]))


def test_of_a_batch_that_runs_in_parts_each_part_holds_its_own_items() -> None:
    examined = examine(IDS, batch_of(ids=[[1], [10], [2], [3]]))
    part = examined.only((2, 3))
    assert part.valid == [2, 3]
    assert part.count == 4


def test_every_byte_but_zero_is_true() -> None:
    request = BatchRequest(
        inputs=(Ragged(name="flags", datatype=Datatype.BOOL, shapes=((2,),), parts=(b"\x00\x02",)),)
    )
    assert examine(BOOL, request).columns["flags"].item(0).tolist() == [False, True]


def test_items_that_are_wrong_alike_cost_one_message() -> None:
    nothing = Ragged(name="ids", datatype=Datatype.INT64, shapes=((0,),) * 4096, parts=(b"",))
    faults = examine(IDS, BatchRequest(inputs=(nothing,))).faults
    assert len(faults) == 4096
    assert len(set(map(id, faults.values()))) == 1
