"""A handler's declaration: what it may say, and what callers are told of it."""

from collections.abc import Mapping

import pytest

from batchedmodel_contract.inference.description import CostRule, description_from_metadata
from batchedmodel_model_server.api.handler import Handler, Spec
from batchedmodel_model_server.batching.declaration import declaration_of, describe
from batchedmodel_model_server.errors import CannotLoad
from support.model_server_handlers import Echo, Giving


def test_a_description_survives_its_way_to_the_proxy() -> None:
    handler = Echo()
    handler.precision = "BF16"
    description = describe("echo", handler, declaration_of(handler))
    assert description_from_metadata(description.to_metadata()) == description
    assert description.inputs[0].shape == (-1,)
    assert description.inputs[0].max_length == 1000
    assert description.cost_rule is CostRule.PADDED
    assert description.to_metadata()["batchedmodel"]["precision"] == "BF16"


def test_a_model_of_fixed_sizes_costs_by_the_row() -> None:
    handler = Giving({}, {"y": Spec("FP32", (2,))}, {"x": Spec("FP32", (3, 4))})
    declaration = declaration_of(handler)
    assert declaration.cost_rule is CostRule.ROWS
    assert declaration.lengths({}, 2) == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("BYTES", (1,)), "'BYTES' is not one of"),
        (("INT64", (0,)), "neither a letter nor above 0"),
        (("INT64", ("not a letter",)), "neither a letter nor above 0"),
        (("INT64", (3,), 0, 5), "needs a lettered dimension"),
        (("FP32", ("L",), 0, 5, 100), "needs an integer datatype"),
        (("FP32", (3,), 0, None, None, 2), "min 2 needs a lettered dimension"),
        (("FP32", ("L",), 0, 5, None, 0), "min 0 needs .* a value above 0"),
        (("FP32", ("L",), 0, 5, None, 6), "min 6 is above max 5"),
    ],
    ids=[
        "bytes",
        "zero size",
        "bad letter",
        "max without letter",
        "vocab of floats",
        "min without letter",
        "min of nothing",
        "min above max",
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(
    arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Spec(*arguments)  # type: ignore[arg-type]


_X: Mapping[str, Spec] = {"x": Spec("INT64", ("L",), max=9)}


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, _X, "declares no inputs"),
        (_X, {}, "declares no outputs"),
        ({"x": "INT64"}, _X, "is not a Spec"),
        ({"x:shapes": Spec("INT64", (1,))}, _X, "is not a tensor name"),
        ({"x": Spec("INT64", ("L",))}, _X, "input x: dimension L needs a max"),
        (_X, {"y": Spec("FP32", (2, "T"))}, "T is in no input"),
        (
            {**_X, "z": Spec("FP32", ("L",), max=20, min=10)},
            _X,
            "inputs: L is at least 10 here, at most 9 there",
        ),
    ],
    ids=[
        "no inputs",
        "no outputs",
        "no spec",
        "reserved name",
        "no bound",
        "own letter inside",
        "no length fits",
    ],
)
def test_a_declaration_that_cannot_be_served_is_refused(
    inputs: Mapping[str, Spec], outputs: Mapping[str, Spec], message: str
) -> None:
    handler = Handler()
    handler.inputs, handler.outputs = inputs, outputs
    with pytest.raises(CannotLoad, match=message):
        declaration_of(handler)


_Y: Mapping[str, Spec] = {"y": Spec("FP32", ())}


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({**_X, "z": Spec("INT64", ("M",), max=9)}, _Y, "^x: a handler that packs has one letter"),
        ({"x": Spec("INT64", (2, "L"), max=9)}, _Y, "it is the first size, not as in 2, L"),
        (_X, {"y": Spec("FP32", ("L", "L"))}, "^y: .* not as in L, L"),
    ],
    ids=["two letters", "letter behind", "letter twice"],
)
def test_what_cannot_lie_in_one_row_is_refused_of_a_handler_that_packs(
    inputs: Mapping[str, Spec], outputs: Mapping[str, Spec], message: str
) -> None:
    handler = Handler()
    handler.inputs, handler.outputs, handler.packs = inputs, outputs, True
    with pytest.raises(CannotLoad, match=message):
        declaration_of(handler)


def test_a_handler_that_packs_may_have_inputs_of_fixed_size_beside() -> None:
    handler = Handler()
    handler.inputs = {**_X, "image": Spec("FP32", (3, 2, 2))}
    handler.outputs, handler.packs = {**_Y, "own": Spec("FP32", ("T",))}, True
    assert declaration_of(handler).packs
