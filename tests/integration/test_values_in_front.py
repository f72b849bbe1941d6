"""What comes back is what went in: every datatype through a real sidecar, in JSON and in binary."""

import asyncio
import json
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from batchedmodel_contract.inference.tensors import (
    HEADER_LENGTH,
    Datatype,
    Tensor,
    join_byte_elements,
)
from batchedmodel_sidecar.protocols.v2 import read_body
from support.chain import Chain
from support.echo_server import ECHO, echo_chain, echoing
from support.v2_bodies import binary_body

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = echoing(
    whole=(Datatype.INT64, (2,)),
    large=(Datatype.UINT64, (1,)),
    real=(Datatype.FP64, (2,)),
    text=(Datatype.BYTES, (2,)),
)
ROW: dict[str, tuple[Datatype, list[Any]]] = {
    "whole": (Datatype.INT64, [1, -2]),
    "large": (Datatype.UINT64, [3]),
    "real": (Datatype.FP64, [0.5, 2.0]),
    "text": (Datatype.BYTES, ["a", "Grüße"]),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    async with echo_chain(tmp_path_factory.mktemp("echo"), MODEL, log_level="debug") as running:
        yield running


def body(rows: int = 1, **values: list[Any]) -> dict[str, Any]:
    """A request with these values in place of the usual ones, in each of its rows."""
    inputs = []
    for name, (datatype, usual) in ROW.items():
        given = values.get(name, usual) * rows
        shape = [rows, len(usual)]
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "data": given})
    return {"inputs": inputs}


async def ask(
    chain: Chain, document: Any, path: str = "/v2/models/m/infer", **headers: str
) -> tuple[int, Any]:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    async with chain.session.post(chain.url(path), data=data, headers=headers) as response:
        return response.status, orjson.loads(await response.read())


def outputs(answer: Any) -> dict[str, Any]:
    return {one["name"].removeprefix(ECHO): one["data"] for one in answer["outputs"]}


async def in_binary(
    chain: Chain, tensors: list[Tensor], **head: Any
) -> tuple[int, dict[str, Tensor]]:
    """Ask in binary for everything in binary."""
    head = {"parameters": {"binary_data_output": True}} | head
    length, body = binary_body(tensors, head)
    url = chain.url("/v2/models/m/infer")
    headers = {HEADER_LENGTH: str(length)}
    async with chain.session.post(url, data=body, headers=headers) as response:
        content = await response.read()
        assert response.status == 200, content
        assert response.content_type == "application/octet-stream"
        given = response.headers[HEADER_LENGTH]
        _, found = read_body(content, given, "outputs")
        return int(given), {one.name.removeprefix(ECHO): one for one in found}


def tensor(name: str, data: bytes, rows: int = 1) -> Tensor:
    datatype, usual = ROW[name]
    return Tensor(name=name, datatype=datatype, shape=(rows, len(usual)), data=data)


def usual_tensors(**changed: bytes) -> list[Tensor]:
    given = {
        "whole": struct.pack("<2q", 1, -2),
        "large": struct.pack("<Q", 3),
        "real": struct.pack("<2d", 0.5, 2.0),
        "text": join_byte_elements(iter([b"a", b"b"])),
    } | changed
    return [tensor(name, data) for name, data in given.items()]


async def test_integers_beyond_the_reach_of_doubles_stay_exact(chain: Chain) -> None:
    wholes, large = [2**53 + 1, -(2**63)], [2**64 - 1]
    status, answer = await ask(chain, body(whole=wholes, large=large))
    assert status == 200
    assert outputs(answer)["whole"] == wholes
    assert outputs(answer)["large"] == large


async def test_an_integer_is_written_as_one_and_a_real_number_as_one(chain: Chain) -> None:
    url = chain.url("/v2/models/m/infer")
    async with chain.session.post(url, json=body(whole=[1, 0], real=[1, 0])) as response:
        text = await response.text()
    assert '"data":[1,0]' in text
    assert '"data":[1.0,0.0]' in text


@pytest.mark.parametrize("value", [1.0, 1.5, "1", True, None])
async def test_an_integer_tensor_takes_integers_only(chain: Chain, value: Any) -> None:
    status, answer = await ask(chain, body(whole=[1, value]))
    assert (status, answer["error"]) == (400, "inputs[0].data: has a value that is not a INT64")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_what_is_no_finite_number_comes_back_in_binary_and_never_as_null(
    chain: Chain, value: float
) -> None:
    data = struct.pack("<2d", value, 1.0)
    _, found = await in_binary(chain, usual_tensors(real=data))
    assert bytes(found["real"].data) == data
    length, body = binary_body(usual_tensors(real=data))
    headers = {HEADER_LENGTH: str(length)}
    status, answer = await ask(chain, body, **headers)
    assert (status, answer["error"]) == (
        400,
        "echo_real: holds NaN or infinity, which JSON cannot express; ask for binary data",
    )


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"1e999"])
async def test_json_that_is_not_json_is_refused(chain: Chain, literal: bytes) -> None:
    data = json.dumps(body()).encode().replace(b"0.5", literal)
    status, answer = await ask(chain, data)
    assert status == 400
    assert answer["error"].startswith("body: is not JSON")


async def test_elements_of_bytes_are_counted_and_not_their_bytes(chain: Chain) -> None:
    texts = ["", "three words here", "Grüße", "x" * 1000]
    document = body(rows=2)
    document["inputs"][3]["data"] = texts
    status, answer = await ask(chain, document)
    assert status == 200
    assert answer["outputs"][3]["shape"] == [2, 2]
    assert outputs(answer)["text"] == texts
    data = join_byte_elements(iter([b"\xff\x00", b""]))
    _, found = await in_binary(chain, usual_tensors(text=data))
    assert bytes(found["text"].data) == data


async def test_what_is_not_utf_8_is_offered_in_binary(chain: Chain) -> None:
    data = join_byte_elements(iter([b"\xff", b"a"]))
    length, body = binary_body(usual_tensors(text=data))
    status, answer = await ask(chain, body, **{HEADER_LENGTH: str(length)})
    assert (status, answer["error"]) == (400, "echo_text: is not UTF-8; ask for binary data")


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ([0, 2], [], "inputs.whole.shape: [0, 2] has no rows"),
        ([2], [1, 2], "inputs.whole.shape: [2] does not fit [-1, 2]"),
        ([], [1], "inputs.whole.shape: [] does not fit [-1, 2]"),
        ([1, 1, 2], [1, 2], "inputs.whole.shape: [1, 1, 2] does not fit [-1, 2]"),
        ([1, 3], [1, 2, 3], "inputs.whole.shape: [1, 3] does not fit [-1, 2]"),
        ([2, 2], [1, 2, 3, 4], "inputs: disagree about the number of rows"),
    ],
)
async def test_a_shape_that_makes_no_rows_is_named(
    chain: Chain, shape: list[int], data: list[int], message: str
) -> None:
    document = body()
    document["inputs"][0] |= {"shape": shape, "data": data}
    status, answer = await ask(chain, document)
    assert status == 400
    assert answer["error"].startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": {"temperature": 1}}, 'parameters: "temperature" is not a parameter'),
        ({"parameters": {"sequence_id": 7}}, 'parameters: "sequence_id" is not a parameter'),
        (
            {"inputs": [{"parameters": {"content_type": "base64"}}]},
            'inputs[0].parameters: "content_type" is not a parameter',
        ),
        (
            {"inputs": [{"parameters": {"shared_memory_region": "a"}}]},
            'inputs[0].parameters: "shared_memory_region" is not a parameter',
        ),
        (
            {"outputs": [{"name": "echo_whole", "parameters": {"classification": 3}}]},
            'outputs[0].parameters: "classification" is not a parameter',
        ),
    ],
)
async def test_a_parameter_that_is_not_understood_is_refused_by_name(
    chain: Chain, change: dict[str, Any], message: str
) -> None:
    document = body()
    document["inputs"][0] |= change.pop("inputs", [{}])[0]
    status, answer = await ask(chain, document | change)
    assert status == 400
    assert answer["error"].startswith(message)


async def test_callers_who_share_a_batch_keep_their_own_options(chain: Chain) -> None:
    async def one(number: int) -> None:
        name = ("echo_whole", "echo_real")[number % 2]
        document = body(whole=[number, number], real=[number + 0.5, 0.0])
        document |= {"id": f"call {number}", "outputs": [{"name": name}]}
        status, answer = await ask(chain, document)
        assert status == 200
        assert answer["id"] == f"call {number}"
        assert (answer["model_name"], answer["model_version"]) == ("m", "3")
        expected = {
            "echo_whole": [number, number],
            "echo_real": [number + 0.5, 0.0],
        }
        assert [(o["name"], o["data"]) for o in answer["outputs"]] == [(name, expected[name])]

    await asyncio.gather(*(one(number) for number in range(40)))


async def test_the_outputs_of_one_answer_may_be_binary_and_json(chain: Chain) -> None:
    document = body() | {
        "outputs": [
            {"name": "echo_text", "parameters": {"binary_data": True}},
            {"name": "echo_whole"},
            {"name": "echo_real", "parameters": {"binary_data": True}},
        ]
    }
    url = chain.url("/v2/models/m/infer")
    async with chain.session.post(url, json=document) as response:
        content, length = await response.read(), response.headers[HEADER_LENGTH]
    head, found = read_body(content, length, "outputs")
    # The binary parts follow in the order in which the head names them.
    assert [one["name"] for one in head["outputs"]] == ["echo_whole", "echo_real", "echo_text"]
    data = {one.name: bytes(one.data) for one in found}
    assert data["echo_real"] == struct.pack("<2d", 0.5, 2.0)
    assert data["echo_text"] == join_byte_elements(iter([b"a", "Grüße".encode()]))


async def test_flat_nested_and_binary_data_say_the_same(chain: Chain) -> None:
    flat = body(rows=2, whole=[1, 2])
    nested = body(rows=2)
    nested["inputs"][0]["data"] = [[1, 2], [1, 2]]
    assert await ask(chain, flat) == await ask(chain, nested)


async def test_a_version_in_the_path_is_the_one_that_is_served_or_not_found(chain: Chain) -> None:
    assert (await ask(chain, body(), "/v2/models/m/versions/3/infer"))[0] == 200
    status, answer = await ask(chain, body(), "/v2/models/m/versions/4/infer")
    assert (status, answer["error"]) == (404, 'version: "4" is not served here; 3 is')
    for path in ("/v2/models/m/versions/{}", "/v2/models/m/versions/{}/ready"):
        async with chain.session.get(chain.url(path.format(3))) as response:
            assert response.status == 200
        async with chain.session.get(chain.url(path.format(1))) as response:
            assert response.status == 404
            assert "3 is" in (await response.json())["error"]


@pytest.mark.parametrize(
    "path",
    (
        "/v2 /v2/health/live /v2/health/ready /v2/models/m /v2/models/m/ready "
        "/v2/models/m/versions/3 /v1/models /v1/models/m"
    ).split(),
)
async def test_head_asks_for_the_head_of_what_get_answers(chain: Chain, path: str) -> None:
    async with chain.session.get(chain.url(path)) as response:
        size, content_type = len(await response.read()), response.content_type
        assert response.status == 200
    async with chain.session.head(chain.url(path)) as response:
        assert response.status == 200
        assert await response.read() == b""
        assert (response.content_length, response.content_type) == (size, content_type)


async def test_the_caller_gets_its_request_id_back_whatever_the_answer(chain: Chain) -> None:
    url = chain.url("/v2/models/m/infer")
    for document, status in ((body(), 200), ({}, 400)):
        headers = {"x-request-id": "7f-3"}
        async with chain.session.post(url, json=document, headers=headers) as response:
            assert (response.status, response.headers["x-request-id"]) == (status, "7f-3")
    async with chain.session.post(url, json=body()) as response:
        assert "x-request-id" not in response.headers


async def test_who_asks_is_told_how_it_was_served(chain: Chain) -> None:
    url = chain.url("/v2/models/m/infer")
    async with chain.session.post(url, json=body(rows=3), headers={"x-timing": "on"}) as response:
        assert response.status == 200
        assert response.headers["x-batch-size"] == "3"
        assert float(response.headers["x-queue-time-ms"]) >= 0
        assert float(response.headers["x-model-time-ms"]) == pytest.approx(1.0)
    async with chain.session.post(url, json=body()) as response:
        assert "x-batch-size" not in response.headers
    status, answer = await ask(chain, body(), **{"x-timing": "yes"})
    assert (status, answer["error"]) == (400, 'x-timing: "yes" is not on or off')


async def test_v1_takes_and_gives_several_tensors_by_name(chain: Chain) -> None:
    instance = {"whole": [2**53 + 1, 2], "large": [3], "real": [0.5, 1], "text": ["a", "b"]}
    other = instance | {"text": ["c", {"b64": "ZA=="}]}
    status, answer = await ask(chain, {"instances": [instance, other]}, "/v1/models/m:predict")
    assert status == 200
    named = [{ECHO + name: value for name, value in one.items()} for one in (instance, other)]
    named[1]["echo_text"] = ["c", "d"]
    assert answer == {"predictions": named}


async def test_the_debug_log_links_a_batch_with_the_traces_of_its_members(
    chain: Chain,
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-request-id": "a"}
    assert (await ask(chain, body(), **headers))[0] == 200
    await chain.sidecar.wait_for(rf"DEBUG batch \d+: 1 rows, \w+, traces \['{trace}'\]")
    headers = {"traceparent": "nonsense", "x-request-id": "caller-7"}
    assert (await ask(chain, body(), **headers))[0] == 200
    await chain.sidecar.wait_for(r"DEBUG batch \d+: 1 rows, \w+, traces \['caller-7'\]")
