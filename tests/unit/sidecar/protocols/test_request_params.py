"""Parameters in callers' bodies: read by the declaration, refused by name, free when absent."""

import asyncio
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.params import Param, Values, column_values
from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.protocol import PublicProtocol
from batchedmodel_sidecar.protocols.v1 import PredictProtocol
from batchedmodel_sidecar.protocols.v2 import V2Protocol
from support.sidecar_world import MODEL, answered, call_of, world

PARAMS: Final = {"scale": Param("FP32", 1.0, max=9), "way": Param("BYTES", "in")}
TAKING: Final = replace(MODEL, description=replace(MODEL.description, params=PARAMS))


async def v2(parameters: Any, model: ReadyModel = TAKING) -> Values | None:
    entry = {"name": "x", "datatype": "UINT8", "shape": [2, 2], "data": [1, 2, 3, 4]}
    return await _params(V2Protocol(), {"inputs": [entry], "parameters": parameters}, model)


async def v1(parameters: Any, model: ReadyModel = TAKING) -> Values | None:
    document = {"instances": [[1, 2], [3]], "parameters": parameters}
    return await _params(PredictProtocol(), document, model)


async def _params(adapter: PublicProtocol, document: Any, model: ReadyModel) -> Values | None:
    return (await adapter.parse(orjson.dumps(document), None, model, 4096)).call.params


@pytest.mark.parametrize("ask", [v2, v1])
async def test_what_the_model_declares_is_taken(ask: Any) -> None:
    assert await ask({"scale": 2, "way": "out"}) == {"scale": 2.0, "way": "out"}
    assert await ask({}) is None
    assert await ask(None) is None


async def test_it_may_stand_beside_what_every_model_takes() -> None:
    parameters = {"scale": 2, "priority": 1, "timeout": 5, "binary_data_output": True}
    assert await v2(parameters) == {"scale": 2.0}
    assert await v2({"priority": 1}) is None


@pytest.mark.parametrize("ask", [v2, v1])
async def test_a_value_that_does_not_fit_is_refused_by_name(ask: Any) -> None:
    with pytest.raises(InvalidInput, match="^parameters.scale: 10 is not a number from"):
        await ask({"scale": 10})


async def test_an_unknown_parameter_is_refused_with_the_known_ones() -> None:
    known = "binary_data_output, priority, scale, timeout, way"
    with pytest.raises(Unbatchable, match=f'^parameters: "speed" is not .* known: {known}'):
        await v2({"speed": 1})
    with pytest.raises(InvalidInput, match='^parameters: "speed" is not .* known: scale, way'):
        await v1({"speed": 1})
    with pytest.raises(InvalidInput, match="^parameters: 5 is not an object"):
        await v1(5)


async def test_a_model_without_parameters_takes_none() -> None:
    with pytest.raises(Unbatchable, match='^parameters: "scale" is not a parameter'):
        await v2({"scale": 1}, MODEL)
    with pytest.raises(InvalidInput, match="^parameters: is not taken here; known: instances"):
        await v1({}, MODEL)


async def sent(*given: Values | None, model: ReadyModel = TAKING) -> list[BatchRequest]:
    """What the server is asked for calls that came at one time, each of one row."""
    w = world(BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.01), attached=False)
    w.batcher.attach(model)
    requests: list[BatchRequest] = []
    infer = w.server.infer

    async def watched(request: BatchRequest, seconds: float) -> BatchReply:
        requests.append(request)
        return await infer(request, seconds)

    w.batcher._infer = watched
    rows = call_of([b"a"]).rows
    await asyncio.gather(*(answered(w.batcher, model.call_of(rows, one)) for one in given))
    return requests


async def test_calls_that_differ_in_parameters_share_a_batch() -> None:
    (request,) = await sent({"scale": 2.0}, None, {"way": "out"})
    found = {column.name: column_values(column, PARAMS[column.name]) for column in request.params}
    assert found == {"scale": [2.0, 1.0, 1.0], "way": ["in", "in", "out"]}


async def test_nothing_travels_where_nobody_sets_anything() -> None:
    assert [request.params for request in await sent(None, None)] == [()]
    assert [request.params for request in await sent(None, model=MODEL)] == [()]
