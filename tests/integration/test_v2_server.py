"""What a v2 server behind the sidecar said reaches its callers as it was said."""

import asyncio
import json
import struct
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain
from support.json_numbers import by_value
from support.row_server import Fronts, RowServer
from support.v2_calls import LENGTH, infer, output, tensor, told

pytestmark = pytest.mark.asyncio(loop_scope="module")

V2: dict[str, Any] = {"protocol": ServerProtocol.V2}
FRONTS: dict[str, dict[str, Any]] = {
    "usual": V2,
    "sends once": V2 | {"idempotent": False},
    "knows labels": V2 | {"replicated_outputs": ("labels",)},
    "knows all": V2 | {"replicated_outputs": ("y", "labels")},
}


@pytest_asyncio.fixture(loop_scope="module")
async def chain(fronts: Fronts, request: pytest.FixtureRequest) -> Chain:
    return await fronts["usual"].anew(binary="binary_chain" in request.fixturenames)


@pytest.fixture
def binary_chain(chain: Chain) -> Chain:
    """The same, in front of a server that reads bytes."""
    return chain


@pytest.fixture
def server(chain: Chain, fronts: Fronts) -> RowServer:
    return fronts["usual"].server


VALUES = [
    ("INT64", "9007199254740993"),
    ("INT64", "-9223372036854775808"),
    ("UINT64", "18446744073709551615"),
    ("FP32", "0.1"),
    ("FP32", "0.10000000149011612"),
    ("FP32", "1"),
    ("FP32", "1.0"),
    ("FP32", "1e-45"),
    ("FP64", "0.30000000000000004"),
    ("FP16", "0.5"),
    ("BOOL", "true"),
    ("BYTES", '"ümlaut \\" ] , ["'),
]


@pytest.mark.parametrize(("datatype", "value"), VALUES)
async def test_a_json_server_is_sent_and_answers_the_very_value(
    chain: Chain, server: RowServer, datatype: str, value: str
) -> None:
    one, other = (tensor(datatype, [1, 2], f"[{value}, {v}]") for v in (value, value))
    answers = await asyncio.gather(infer(chain, one), infer(chain, other))
    expected = by_value(f"[{value}, {value}]")
    assert [output(answer)["data"] for answer in answers] == [expected, expected]
    assert server.rows == [2]
    assert value.encode() in server.bodies[0]


async def test_nan_and_infinity_pass_as_the_server_sent_them(
    chain: Chain, server: RowServer
) -> None:
    def odd(outputs: list[dict[str, Any]]) -> None:
        rows = outputs[0]["shape"][0]
        outputs[0]["data"] = [float("nan"), float("-inf")] * rows

    server.outputs = odd
    answers = await asyncio.gather(
        *(infer(chain, tensor("FP32", [1, 2], "[1, 2]")) for _ in range(3))
    )
    assert {str(output(answer)["data"]) for answer in answers} == {"['NaN', '-Infinity']"}


async def test_nested_data_stays_nested_and_flat_data_flat(chain: Chain, server: RowServer) -> None:
    forms = ["[[1,2],[3,4]]", "[1,2,3,4]"]
    answers = await asyncio.gather(*(infer(chain, tensor("INT64", [2, 2], f)) for f in forms))
    assert [output(answer)["data"] for answer in answers] == [
        [["1", "2"], ["3", "4"]],
        ["1", "2", "3", "4"],
    ]
    assert server.rows == [2, 2]


async def test_parameters_of_outputs_versions_and_ids_reach_each_caller(
    chain: Chain, server: RowServer
) -> None:
    calls = [infer(chain, tensor("INT64", [1, 1], f"[{i}]"), f', "id": "n{i}"') for i in range(4)]
    for index, (_, text) in enumerate(await asyncio.gather(*calls)):
        document = json.loads(text)
        assert document["id"] == f"n{index}"
        assert document["model_version"] == "3"
        assert document["outputs"][0]["parameters"] == {"unit": "m"}
    assert server.rows == [4]


async def test_versions_are_asked_for_apart(chain: Chain, server: RowServer) -> None:
    one = tensor("INT64", [1, 1], "[1]")
    for _ in range(2):
        answers = await asyncio.gather(*(infer(chain, one, version=str(i % 2)) for i in range(4)))
        assert [json.loads(text)["model_version"] for _, text in answers] == ["0", "1", "0", "1"]
        await infer(chain, tensor("INT64", [3, 1], "[1, 2, 3]"), version="0")
        await infer(chain, tensor("INT64", [3, 1], "[1, 2, 3]"), version="1")
    # At first nothing is known of a version, whose requests are then of one call each.
    assert server.rows == [1, 1, 1, 1, 3, 3, 2, 2, 3, 3]


async def test_parameters_that_are_not_per_row_are_part_of_the_key(
    chain: Chain, server: RowServer
) -> None:
    def ask(i: int) -> Any:
        beside = f', "parameters": {{"temperature": {i % 2}.50, "timeout": 900000{i}}}'
        return infer(chain, tensor("INT64", [1, 1], "[1]"), beside)

    answers = await asyncio.gather(*(ask(i) for i in range(4)))
    # What the sidecar itself understands is not the server's.
    assert [json.loads(text)["parameters"] for _, text in answers] == [
        {"temperature": i % 2 + 0.5} for i in range(4)
    ]
    assert server.rows == [2, 2]


async def test_parameters_of_inputs_are_part_of_the_key_too(
    chain: Chain, server: RowServer
) -> None:
    kinds = ["np", "str", "np", "str"]
    tensors = [tensor("INT64", [1, 1], "[1]", parameters={"content_type": k}) for k in kinds]
    await asyncio.gather(*(infer(chain, one) for one in tensors))
    assert server.rows == [2, 2]
    sent = [json.loads(body)["inputs"][0]["parameters"]["content_type"] for body in server.bodies]
    assert sorted(sent) == ["np", "str"]


async def test_the_outputs_that_are_asked_for_are_part_of_the_key(
    chain: Chain, server: RowServer
) -> None:
    wishes = [', "outputs": [{"name": "y"}]', ""] * 2
    await infer(chain, tensor("INT64", [1, 1], "[1]"), wishes[0])
    server.bodies.clear()
    await asyncio.gather(*(infer(chain, tensor("INT64", [1, 1], "[1]"), w) for w in wishes))
    assert server.rows == [1, 2, 2]
    assert sorted("outputs" in json.loads(body) for body in server.bodies) == [False, True]


@pytest.mark.parametrize("shape", [[], [3], [2, 2]])
async def test_an_output_without_a_row_for_each_row_is_refused_clearly(
    chain: Chain, server: RowServer, shape: list[int]
) -> None:
    def labels(outputs: list[dict[str, Any]]) -> None:
        outputs.append({"name": "labels", "datatype": "INT64", "shape": shape, "data": [0]})

    server.outputs = labels
    answers = await asyncio.gather(
        *(infer(chain, tensor("INT64", [1, 1], "[1]")) for _ in range(4))
    )
    assert {status for status, _ in answers} == {502}
    assert "outputs.labels.shape" in answers[0][1]
    assert "rows in its first dimension" in answers[0][1]


def with_labels(outputs: list[dict[str, Any]]) -> None:
    """Three of them, whatever was asked: what metadata does not tell from three rows."""
    outputs.append({"name": "labels", "datatype": "INT64", "shape": [3], "data": [7, 8, 9]})


@pytest.mark.parametrize("kind", ["usual", "sends once"])
@pytest.mark.parametrize("callers", [2, 3, 4])
async def test_an_output_that_is_as_long_as_the_batch_by_chance_is_never_cut(
    fronts: Fronts, callers: int, kind: str
) -> None:
    chain = await fronts[kind].anew(outputs=with_labels)
    for _ in range(3):
        answers = await asyncio.gather(
            *(infer(chain, tensor("INT64", [1, 1], f"[{n}]")) for n in range(callers))
        )
        assert {status for status, _ in answers} == {502}
        assert all("outputs.labels.shape" in text for _, text in answers)
    # Of somebody who is alone in a request and has three rows, all of it is.
    status, text = await infer(chain, tensor("INT64", [3, 1], "[1, 2, 3]"))
    assert status == 200
    assert json.loads(text)["outputs"][1]["data"] == [7, 8, 9]


def with_columns_means(outputs: list[dict[str, Any]]) -> None:
    """In place of the rows: what a caller chooses the length of, and what depends on all rows."""
    columns = outputs[0]["shape"][1]
    outputs[0] |= {"shape": [columns], "data": [0.5] * columns}


async def test_nobody_can_have_an_output_of_his_own_length_taken_for_rows_of_others(
    fronts: Fronts,
) -> None:
    chain = await fronts["usual"].anew(outputs=with_columns_means)
    for size in (2, 3):
        square = tensor("INT64", [size, size], json.dumps([1] * size**2))
        assert (await infer(chain, square))[0] == 200
    answers = await asyncio.gather(
        *(infer(chain, tensor("INT64", [1, 4], f"[{n}, 1, 1, 1]")) for n in range(4))
    )
    assert {status for status, _ in answers} == {502}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("callers", [1, 3, 4])
async def test_an_output_that_the_manifest_names_reaches_each_caller_whole(
    fronts: Fronts, callers: int, binary: bool
) -> None:
    chain = await fronts["knows labels"].anew(outputs=with_labels)
    wish = ', "parameters": {"binary_data_output": true}' if binary else ""
    body = '{"inputs": [%s]%s}'
    asked = [body % (tensor("INT64", [2, 1], f"[{n}, 5]"), wish) for n in range(callers)]
    url = chain.url(chain.infer_path)
    answers = await asyncio.gather(*(told(chain, url, one.encode()) for one in asked))
    assert fronts["knows labels"].server.rows == [2 * callers]
    for number, (head, data) in enumerate(answers):
        rows, labels = head["outputs"]
        assert labels["shape"] == [3]
        assert rows["shape"] == [2, 1]
        if binary:
            assert struct.unpack("<5q", data) == (number, 5, 7, 8, 9)
        else:
            assert (rows["data"], labels["data"]) == ([number, 5], [7, 8, 9])


async def test_a_server_whose_every_output_is_whole_is_asked_once_for_each_batch(
    fronts: Fronts,
) -> None:
    chain = await fronts["knows all"].anew(outputs=with_labels)
    for _ in range(2):
        answers = await asyncio.gather(
            *(infer(chain, tensor("INT64", [1, 1], f"[{n}]")) for n in range(3))
        )
        assert [status for status, _ in answers] == [200] * 3
    assert fronts["knows all"].server.rows == [3, 3]


@pytest.mark.parametrize("kind", ["usual", "sends once"])
async def test_a_trial_that_is_refused_costs_nobody_else_an_answer(
    fronts: Fronts, kind: str
) -> None:
    texts = ['"poison"', '"a"', '"b"', '"c"']
    chain = await fronts[kind].anew()
    # Of a version that was not asked for yet nothing is known.
    answers = await asyncio.gather(
        *(infer(chain, tensor("BYTES", [1, 1], f"[{text}]"), version="7") for text in texts)
    )
    assert [status for status, _ in answers] == [422, 200, 200, 200]
    assert [output(answer)["data"] for answer in answers[1:]] == [["a"], ["b"], ["c"]]
    assert fronts[kind].server.rows == [1, 1, 2]


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("INT64", [0, 2], "[]"),
        ("INT64", [1, 0], "[]"),
        ("INT64", [2, 2], "[1, 2]"),
        ("INT64", [2], "[1, 2]"),
    ],
)
async def test_what_has_no_rows_to_be_told_apart_goes_alone_as_it_came(
    chain: Chain, server: RowServer, datatype: str, shape: list[int], data: str
) -> None:
    status, text = await infer(chain, tensor(datatype, shape, data))
    assert status == 200
    assert json.loads(text)["outputs"][0]["shape"] == shape
    assert server.bodies == [f'{{"inputs": [{tensor(datatype, shape, data)}]}}'.encode()]


async def test_one_poisoned_row_of_several_is_isolated(chain: Chain, server: RowServer) -> None:
    texts = ['"good"', '"poison"', '"fine"']
    answers = await asyncio.gather(
        *(infer(chain, tensor("BYTES", [1, 1], f"[{text}]")) for text in texts)
    )
    assert [status for status, _ in answers] == [200, 422, 200]
    assert json.loads(answers[1][1]) == {"error": "this is poison", "code": 7}


async def test_a_binary_caller_of_a_json_server_gets_binary_data(
    chain: Chain, server: RowServer
) -> None:
    status, head, data = await binary(chain, "FP32", [2, 1], struct.pack("<2f", 0.1, -2.5))
    assert status == 200
    assert head["outputs"][0]["parameters"] == {"unit": "m", "binary_data_size": 8}
    assert struct.unpack("<2f", data) == struct.unpack("<2f", struct.pack("<2f", 0.1, -2.5))
    assert LENGTH not in server.requests[0].headers


async def binary(
    chain: Chain, datatype: str, shape: list[int], data: bytes, wanted: bool = True
) -> tuple[int, dict[str, Any], bytes]:
    parameters = {"binary_data_size": len(data)}
    entry = {"name": "x", "datatype": datatype, "shape": shape, "parameters": parameters}
    head = {"inputs": [entry], "parameters": {"binary_data_output": wanted}}
    text = json.dumps(head).encode()
    async with chain.session.post(
        chain.url(chain.infer_path), data=text + data, headers={LENGTH: str(len(text))}
    ) as response:
        body = await response.read()
        end = int(response.headers.get(LENGTH, len(body)))
        return response.status, json.loads(body[:end]), body[end:]


BYTES_ELEMENT = struct.pack("<I", 3) + b"\xff\x00a"


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", struct.pack("<2f", float("nan"), float("-inf"))),
        ("FP16", struct.pack("<2e", 1.5, -2.0)),
        ("INT64", struct.pack("<2q", 2**63 - 1, -(2**63))),
        ("BYTES", BYTES_ELEMENT + struct.pack("<I", 0)),
    ],
)
async def test_a_binary_server_and_its_binary_callers_exchange_the_very_bytes(
    binary_chain: Chain, server: RowServer, datatype: str, data: bytes
) -> None:
    await binary(binary_chain, datatype, [2, 2], 2 * data)  # so that its rows are known as such
    await binary(binary_chain, datatype, [1, 2], data)
    server.rows.clear()
    server.requests.clear()
    calls = [binary(binary_chain, datatype, [1, 2], data) for _ in range(3)]
    for status, head, got in await asyncio.gather(*calls):
        assert (status, got) == (200, data)
        assert head["outputs"][0]["parameters"] == {"unit": "m", "binary_data_size": len(data)}
    assert server.rows == [3]
    assert server.requests[0].headers[LENGTH]


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_lone_caller_is_told_the_length_of_its_own_head_and_not_of_the_servers(
    binary_chain: Chain, wanted: bool
) -> None:
    data = struct.pack("<2f", 0.1, -2.5)
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
    parameters = {"binary_data_size": len(data)}
    asked = {
        "inputs": [{**entry, "parameters": parameters}],
        "parameters": {"binary_data_output": wanted},
    }
    head = json.dumps(asked).encode()
    async with binary_chain.session.post(
        binary_chain.url(binary_chain.infer_path),
        data=head + data,
        headers={LENGTH: str(len(head))},
    ) as response:
        lengths = response.headers.getall(LENGTH, [])
        body = await response.read()
    assert lengths == ([str(len(body) - len(data))] if wanted else [])


async def test_json_and_binary_callers_of_a_binary_server_share_a_request(
    binary_chain: Chain, server: RowServer
) -> None:
    data = struct.pack("<2f", 0.1, 16777216.0)
    (_, text), (_, _, got), (_, head, rest) = await asyncio.gather(
        infer(binary_chain, tensor("FP32", [1, 2], "[0.1, 16777216.0]")),
        binary(binary_chain, "FP32", [1, 2], data),
        binary(binary_chain, "FP32", [1, 2], data, wanted=False),
    )
    assert server.rows == [3]
    assert got == data
    # The shortest text that means the same number.
    assert '"data":[0.1,16777216.0]' in text
    assert rest == b""
    assert head["outputs"][0]["data"] == [0.1, 16777216.0]


async def test_what_json_cannot_say_is_refused_to_the_caller_who_wants_it_in_json(
    binary_chain: Chain, server: RowServer
) -> None:
    data = struct.pack("<2d", 1.0, float("nan"))
    (status, _, got), (refused, head, _) = await asyncio.gather(
        binary(binary_chain, "FP64", [1, 2], data),
        binary(binary_chain, "FP64", [1, 2], data, wanted=False),
    )
    assert (status, got) == (200, data)
    assert refused == 400
    assert "ask for binary data" in head["error"]
