"""What a model server answers as a real process on a real Unix socket, without torch."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest
import pytest_asyncio

from batchedmodel_contract.inference.description import CostRule, description_from_metadata
from batchedmodel_contract.inference.profile import profile_from_mapping
from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.inference.v2 import HEADER_LENGTH, read_body, write_body
from batchedmodel_contract.processes.server_api import (
    ModelState,
    infer_path,
    model_path,
    profile_path,
    tokenizer_path,
)
from support.model_server_handlers import arrays_of
from support.model_server_process import (
    NAME,
    ModelServerProcess,
    model_server,
    token_batch,
)

HANDLERS = "support.model_server_handlers"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def simulated(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ModelServerProcess]:
    """One for all tests that leave it as it was."""
    async with model_server(tmp_path_factory.mktemp("simulated")) as server:
        assert (await server.settled()).state is ModelState.READY
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def failing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelServerProcess]:
    """One that echoes, in several outputs, and fails at certain numbers."""
    folder = tmp_path_factory.mktemp("failing")
    async with model_server(folder, f"{HANDLERS}:Failing") as server:
        assert (await server.settled()).state is ModelState.READY
        yield server


async def test_a_batch_is_answered_item_by_item(simulated: ModelServerProcess) -> None:
    reply = await simulated.infer(token_batch("x", [[1, 2, 3], [4], [5, 6]]))
    assert reply.statuses == (200, 200, 200)
    assert [a.tolist() for a in arrays_of(reply.outputs[0])] == [[1, 2, 3], [4], [5, 6]]
    assert reply.queue_seconds + reply.compute_seconds >= 0.00529
    assert reply.tokens == 6


async def test_the_documents_can_be_read_by_the_proxy(simulated: ModelServerProcess) -> None:
    status, metadata = await simulated.get(model_path(NAME))
    description = description_from_metadata(metadata)
    assert status == 200
    assert description.name == NAME
    assert description.cost_rule is CostRule.ROWS
    status, profile = await simulated.get(profile_path(NAME))
    assert profile_from_mapping(profile).points[0].rows == 1
    status, server = await simulated.get("/v2")
    assert "batchedmodel.batch" in server["extensions"]
    for path in ("/v2/health/live", "/v2/health/ready", f"{model_path(NAME)}/ready"):
        assert (await simulated.get(path))[0] == 200
    status, answer = await simulated.get(tokenizer_path(NAME))
    assert status == 404
    assert "no tokenizer" in answer["error"]


async def test_a_plain_json_request_is_answered_in_json(simulated: ModelServerProcess) -> None:
    tensor = {"name": "x", "datatype": "INT64", "shape": [2, 2], "data": [[1, 2], [3, 4]]}
    status, answer = await simulated.post(orjson.dumps({"id": "a", "inputs": [tensor]}))
    assert status == 200
    assert answer == {
        "model_name": NAME,
        "model_version": "1",
        "id": "a",
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 4]}],
    }


async def test_each_output_is_answered_in_the_form_it_was_asked_for(
    failing: ModelServerProcess,
) -> None:
    wishes = [{"name": "y"}, {"name": "sum", "parameters": {"binary_data": True}}]
    body = orjson.dumps({"inputs": [X], "outputs": wishes})
    async with failing.session.post(infer_path(NAME), data=body) as answer:
        content = await answer.read()
        length = answer.headers[HEADER_LENGTH]
    head, outputs = read_body(content, length, "outputs", orjson.loads)
    assert [output.name for output in outputs] == ["y", "sum"]
    assert head["outputs"][0]["data"] == [1]
    assert head["outputs"][1]["parameters"] == {"binary_data_size": 4}
    assert len(content) == int(length) + 4


async def test_a_plain_binary_request_is_answered_in_binary(
    simulated: ModelServerProcess,
) -> None:
    tensor = Tensor(name="x", datatype=Datatype.INT64, shape=(2, 1), data=bytes(range(16)))
    head = {"parameters": {"binary_data_output": True}}
    length, parts = write_body(head, [tensor], "inputs", orjson.dumps)
    headers = {HEADER_LENGTH: str(length)}
    body = b"".join(parts)
    async with simulated.session.post(infer_path(NAME), data=body, headers=headers) as answer:
        content = await answer.read()
        _, (output,) = read_body(content, answer.headers[HEADER_LENGTH], "outputs", orjson.loads)
    assert output.shape == (2, 1)
    assert bytes(output.data) == bytes(range(16))


X = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}


WRONG = {
    "no json": (b"{", "body: is not JSON"),
    "no object": (b"[]", "body: is not a JSON object"),
    "no inputs": (b"{}", "inputs: must be a list"),
    "no rows": (orjson.dumps({"inputs": [{**X, "shape": [0, 1], "data": []}]}), "no rows"),
    "wrong size": (orjson.dumps({"inputs": [{**X, "shape": [2, 1]}]}), "the shape needs 2"),
    "wrong datatype": (orjson.dumps({"inputs": [{**X, "datatype": "INT32"}]}), "row 0: x: "),
    "unknown input": (orjson.dumps({"inputs": [{**X, "name": "z"}]}), '"z" is not an input'),
    "unknown output": (
        orjson.dumps({"inputs": [X], "outputs": [{"name": "q"}]}),
        "is not an output",
    ),
    "unknown parameter": (
        orjson.dumps({"inputs": [X], "parameters": {"temperature": 1}}),
        'parameters: "temperature" is not a parameter that is taken here',
    ),
    "wrong shapes": (
        orjson.dumps({"inputs": [X, {**X, "name": "x:shapes", "shape": [1]}]}),
        "x:shapes: is not INT64 of items x rank",
    ),
}


async def test_a_wrong_request_is_told_what_is_wrong(
    simulated: ModelServerProcess, subtests: pytest.Subtests
) -> None:
    for case, (body, message) in WRONG.items():
        with subtests.test(case):
            status, answer = await simulated.post(body)
            assert status == 400
            assert message in answer["error"]


async def test_other_models_and_paths_are_not_found(simulated: ModelServerProcess) -> None:
    status, answer = await simulated.get(model_path("other"))
    assert (status, answer) == (404, {"error": "model 'other' is not served here, only 'model'"})
    assert (await simulated.get("/nowhere"))[0] == 404
    status, answer = await simulated.get(infer_path(NAME))
    assert status == 405
    assert "error" in answer


async def test_a_declared_body_beyond_the_limit_is_refused(simulated: ModelServerProcess) -> None:
    # Streamed by hand: the server must refuse by the length alone, before a gigabyte was sent.
    reader, writer = await asyncio.open_unix_connection(str(simulated.socket))
    head = f"POST {infer_path(NAME)} HTTP/1.1\r\nHost: m\r\nContent-Length: {2 << 30}\r\n\r\n"
    writer.write(head.encode())
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()


async def test_the_simulated_device_is_never_faster_than_its_formula(
    simulated: ModelServerProcess,
) -> None:
    batch = token_batch("x", [[1]] * 32)
    each = 0.005 + 32 * 0.0001

    async def caller(count: int) -> None:
        for _ in range(count):
            await simulated.infer(batch)

    began = time.monotonic()
    await asyncio.gather(caller(10), caller(10))
    took = time.monotonic() - began
    # How little slower it is depends on the machine, so a benchmark says that.
    assert took >= 20 * each


async def test_a_caller_that_leaves_disturbs_nobody(simulated: ModelServerProcess) -> None:
    callers = [
        asyncio.create_task(simulated.infer(token_batch("x", [[number]]))) for number in range(20)
    ]
    await asyncio.sleep(0.01)
    for caller in callers[::2]:
        caller.cancel()
    await asyncio.wait(callers)
    for number, caller in enumerate(callers):
        if number % 2:
            assert arrays_of(caller.result().outputs[0])[0].tolist() == [number]


async def test_batches_beyond_the_bound_are_refused_at_once(simulated: ModelServerProcess) -> None:
    connector = aiohttp.UnixConnector(path=str(simulated.socket), limit=300)
    body = orjson.dumps({"inputs": [X]})
    async with aiohttp.ClientSession("http://model", connector=connector) as session:

        async def ask() -> int:
            async with session.post(infer_path(NAME), data=body) as answer:
                return answer.status

        statuses = await asyncio.gather(*(ask() for _ in range(300)))
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 64


async def test_a_bad_item_and_a_failed_pass_are_answered_per_item(
    failing: ModelServerProcess,
) -> None:
    reply = await failing.infer(token_batch("x", [[1], [99], [2, 3]]))
    assert reply.statuses == (200, 400, 200)
    assert reply.errors[1] == "x: 99 is not served here"
    reply = await failing.infer(token_batch("x", [[1], [99], [13]]))
    assert reply.statuses == (200, 400, 500)
    assert "13 brings bad luck" in reply.errors[2]
    # The failure is over with its batch.
    assert (await failing.infer(token_batch("x", [[1]]))).statuses == (200,)
    status, answer = await failing.post(
        orjson.dumps({"inputs": [{**X, "shape": [2, 1], "data": [5, 13]}]})
    )
    assert status == 500
    assert "row 1: the model failed: RuntimeError" in answer["error"]
