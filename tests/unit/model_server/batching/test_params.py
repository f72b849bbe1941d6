"""Parameters of requests on their way through the server to `batch.params`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.inference.batch import BatchRequest
from batchedmodel_contract.inference.description import description_from_metadata
from batchedmodel_contract.inference.params import Values, columns, read_values
from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.batch import ParamColumn
from batchedmodel_model_server.api.handler import Batch, Handler, Param
from batchedmodel_model_server.batching.declaration import Sharing, declaration_of, describe
from batchedmodel_model_server.batching.items import collate, examine, parts
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.device_thread import DeviceThread
from support.model_server_handlers import Echo, Scaled, arrays_of, batch_of, loaded
from support.model_server_runner import runner_of


def asked(rows: list[Values | None], *items: list[float]) -> BatchRequest:
    """A batch of items, each with what its request sets."""
    request = batch_of(x=[np.array(item, "f4") for item in items])
    return replace(request, params=columns(rows, Scaled.params))


async def test_each_item_is_answered_by_its_own_parameters(compute: DeviceThread) -> None:
    rows: list[Values | None] = [{"scale": 2.0}, None, {"negate": True, "shift": 1}]
    request = asked(rows, [1, 2, 3], [4], [5.5, 6])
    reply = await runner_of(loaded(Scaled()), compute).run(request)
    assert [a.tolist() for a in arrays_of(reply.outputs[0])] == [[2, 4, 6], [4], [-6.5, -7]]
    assert reply.passes == 1


async def test_without_parameters_all_items_have_the_defaults(compute: DeviceThread) -> None:
    reply = await runner_of(loaded(Scaled()), compute).run(asked([None], [1.5]))
    assert arrays_of(reply.outputs[0])[0].tolist() == [1.5]


async def test_an_item_whose_parameter_does_not_fit_fails_alone(compute: DeviceThread) -> None:
    # The proxy would have refused it, but what protects the neighbours must not depend on that.
    request = asked([{"scale": 11.0}, {"scale": 2.0}, {"rounding": "sideways"}], [1], [1], [1])
    reply = await runner_of(loaded(Scaled()), compute).run(request)
    assert reply.statuses == (400, 200, 400)
    assert reply.errors[0] == "parameters.scale: 11.0 is not a number from -10 to 10"
    assert reply.errors[2] == 'parameters.rounding: "sideways" is not one of none, down, up'
    assert arrays_of(reply.outputs[0])[1].tolist() == [2]


async def test_a_number_on_its_bound_is_taken_and_so_is_a_default(compute: DeviceThread) -> None:
    class Bounded(Echo):
        params: Mapping[str, Param] = {
            "high": Param("FP32", 0.8, min=0.1, max=0.8),
            "low": Param("FP32", 0.9, min=0.9, max=1),
        }

    known = Bounded.params
    given_ = ({"high": 0.8, "low": 0.9}, {"high": 0.1}, None)
    rows = [read_values(one, known) for one in given_]
    request = replace(batch_of(x=[[1]] * 3), params=columns(rows, known))
    reply = await runner_of(loaded(Bounded()), compute).run(request)
    assert (reply.statuses, reply.errors) == ((200,) * 3, ("",) * 3)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Tensor(name="speed", datatype=Datatype.FP32, shape=(1,), data=bytes(4)),
         'parameters: "speed" is not a parameter of this model; it takes scale, shift'),
        (Tensor(name="scale", datatype=Datatype.INT64, shape=(1,), data=bytes(8)),
         'parameters.scale: "INT64" is not FP32'),
        (Tensor(name="scale", datatype=Datatype.FP32, shape=(2,), data=bytes(8)),
         "parameters.scale: has 2 values for 1 items"),
        (Tensor(name="scale", datatype=Datatype.FP32, shape=(1,), data=b"\0\0\xc0\x7f"),
         "parameters.scale: holds NaN"),
    ],
    ids=["unknown", "datatype", "count", "NaN"],
)  # fmt: skip
def test_parameters_of_another_model_are_no_batch_of_this_one(column: Tensor, message: str) -> None:
    request = replace(batch_of(x=[np.ones(1, "f4")]), params=(column,))
    with pytest.raises(InvalidInput, match=message):
        examine(declaration_of(Scaled()), request)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(-9, 9)), min_size=1, max_size=8),
    st.sampled_from(Sharing),
)
def test_parameters_stay_with_their_items_however_these_are_ordered(
    drawn: list[tuple[int, int]], sharing: Sharing
) -> None:
    declaration = replace(declaration_of(Scaled()), sharing=sharing)
    items = [[float(index)] * length for index, (length, _) in enumerate(drawn)]
    request = asked([{"shift": shift} for _, shift in drawn], *items)
    for part in parts(declaration, collate(declaration, examine(declaration, request))):
        assert [drawn[item][1] for item in part.items] == list(part.params["shift"])
        assert len(part.params["rounding"]) == part.rows


@pytest.mark.slow
def test_numbers_come_as_tensors_and_texts_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    params: dict[str, ParamColumn] = {"scale": np.array([1, 2], "f4"), "mode": ("a", "b")}
    batch = Batch(arrays={}, sizes={}, rows=2, device="cpu", handed_over=0.0, params=params)
    assert torch.equal(batch.params["scale"], torch.tensor([1.0, 2.0]))
    assert batch.params["mode"] == ("a", "b")
    assert batch.params.array("mode").tolist() == ["a", "b"]
    assert list(batch.params) == ["scale", "mode"]


def test_callers_are_told_of_the_parameters() -> None:
    handler = Scaled()
    description = describe("m", handler, declaration_of(handler))
    assert description_from_metadata(description.to_metadata()) == description
    assert description.to_metadata()["batchedmodel"]["parameters"]["scale"] == {
        "datatype": "FP32",
        "default": 1.0,
        "min": -10,
        "max": 10,
        "choices": (),
    }


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (["scale"], "Echo.params is not a mapping of names to Param"),
        ({"scale": 1.0}, r"Echo.params\['scale'\] is not a Param"),
        ({"a b": Param("BOOL", True)}, "'a b' is not a name"),
        ({7: Param("BOOL", True)}, "7 is not a name"),
        ({"timeout": Param("INT64", 1)}, "timeout means something to every model already"),
        ({"binary_data_output": Param("BOOL", True)}, "binary_data_output means something"),
    ],
)
def test_parameters_that_cannot_be_declared_are_refused(params: Any, message: str) -> None:
    handler: Handler = Echo()
    handler.params = params
    with pytest.raises(CannotLoad, match=message):
        declaration_of(handler)


def test_most_handlers_have_none() -> None:
    params: Mapping[str, Param] = Echo().params
    assert not params
    assert not list(Batch(arrays={}, sizes={}, rows=1, device="host", handed_over=0.0).params)
