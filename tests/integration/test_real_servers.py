"""Real servers of other projects behind the sidecar: MLServer for v2, KServe's for v1 and v2."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain
from support.json_numbers import by_value
from support.row_server import in_front
from support.upstream_server import kserve, mlserver

pytestmark = [
    # The first run installs the servers.
    pytest.mark.timeout(1200),
    # What they say is pinned, and servers of the tests' own say the same by day.
    pytest.mark.nightly,
    pytest.mark.asyncio(loop_scope="module"),
]

V1_PATH = "/v1/models/m:predict"
V2_PATH = "/v2/models/m/infer"
LENGTH = "Inference-Header-Content-Length"
Said = tuple[int, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def their_mlserver() -> AsyncIterator[str]:
    """Its address; one for all sidecars, of which each test has its own."""
    async with mlserver() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def their_kserve() -> AsyncIterator[str]:
    """The same. It speaks v1 and v2, and does not say that it takes binary tensors."""
    async with kserve("v2") as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frank_kserve() -> AsyncIterator[str]:
    """The same, but it says so."""
    async with kserve("binary") as url:
        yield url


async def post(session: aiohttp.ClientSession, url: str, body: str) -> Said:
    # A connection each: these servers hang up after an error and do not announce it.
    headers = {"Content-Type": "application/json", "Connection": "close"}
    async with session.post(url, data=body.encode(), headers=headers) as response:
        if response.content_type != "application/json":
            return response.status, await response.text()
        return response.status, await response.json(loads=by_value)


def tensor(datatype: str, *values: object) -> str:
    data = json.dumps([value for row in values for value in _row(row)])
    shape = [len(values), len(_row(values[0]))]
    entry = f'"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}'
    return f'{{"inputs":[{{{entry}}}]}}'


def _row(row: object) -> list[object]:
    return row if isinstance(row, list) else [row]


async def both_ways(
    chain: Chain, url: str, path: str, bodies: list[str]
) -> list[tuple[Said, Said]]:
    """What is said to each body through the sidecar, all at once, and straight, one by one."""
    through = await asyncio.gather(*(post(chain.session, chain.url(path), b) for b in bodies))
    straight = [await post(chain.session, url + path, body) for body in bodies]
    return list(zip(through, straight, strict=True))


async def test_mlserver_says_the_same_through_the_sidecar_as_straight(
    tmp_path: Path, their_mlserver: str
) -> None:
    async with in_front(their_mlserver, tmp_path, ServerProtocol.V2) as chain:
        bodies = [
            tensor("INT64", [2**53 + 1, -5], [7, 8]),
            tensor("INT64", [1, 2]),
            tensor("FP32", [0.1, 3.0]),
            tensor("FP32", [1e-30, 16777216.0], [0.25, 2.0]),
            tensor("FP64", [0.1, 1e300]),
            tensor("FP64", [0.30000000000000004]),
            tensor("INT32", [2**31 - 1, 0]) + " ",
        ]
        for through, straight in await both_ways(chain, their_mlserver, V2_PATH, bodies * 3):
            assert through[0] == straight[0] == 200
            del straight[1]["id"]  # its own for each request
            assert through[1] == straight[1]
        assert await chain.metric("batchedmodel_batch_size_count") < len(bodies) * 3


async def test_mlserver_refuses_one_row_of_32_and_the_others_are_right(
    tmp_path: Path, their_mlserver: str
) -> None:
    async with in_front(their_mlserver, tmp_path, ServerProtocol.V2) as chain:
        for bad, status in ((-1, 422), (-2, 500), (-3, 502)):
            bodies = [tensor("INT64", [i, i]) for i in range(1, 32)]
            bodies.insert(20, tensor("INT64", [bad, 0]))
            answers = await asyncio.gather(
                *(post(chain.session, chain.url(V2_PATH), body) for body in bodies)
            )
            assert answers[20][0] == status, answers[20]
            if bad == -3:
                assert "outputs.y.shape" in answers[20][1]["error"]
            else:
                assert answers[20] == await post(
                    chain.session, their_mlserver + V2_PATH, bodies[20]
                )
            for i, (got, document) in zip(range(1, 32), answers[:20] + answers[21:], strict=True):
                assert got == 200
                assert document["outputs"][0]["data"] == [str(2 * i)] * 2


async def test_mlservers_own_words_for_a_wrong_shape_reach_its_author_only(
    tmp_path: Path,
    their_mlserver: str,
) -> None:
    async with in_front(their_mlserver, tmp_path, ServerProtocol.V2) as chain:
        wrong = '{"inputs":[{"name":"x","datatype":"INT64","shape":[1,3],"data":[1,2]}]}'
        nothing = '{"inputs":[{"name":"x","datatype":"INT64","shape":[1,1]}]}'
        bodies = [wrong, tensor("INT64", [4, 4]), nothing, '{"inputs": 5}', tensor("INT64", [5, 5])]
        found = await both_ways(chain, their_mlserver, V2_PATH, bodies)
        statuses = [(through[0], straight[0]) for through, straight in found]
        assert all(through == straight for through, straight in statuses), statuses
        assert [through for through, _ in statuses][1::3] == [200, 200]
        assert all(400 <= statuses[i][0] < 600 for i in (0, 2, 3))


async def test_a_binary_caller_of_mlserver_gets_binary_tensors(
    tmp_path: Path, their_mlserver: str
) -> None:
    async with in_front(their_mlserver, tmp_path, ServerProtocol.V2) as chain:
        data = struct.pack("<2d", 0.1, -3.0)
        assert await binary(chain, "FP64", data) == struct.pack("<2d", 0.2, -6.0)


async def binary(chain: Chain, datatype: str, data: bytes) -> bytes:
    parameters = {"binary_data_size": len(data)}
    entry = {"name": "x", "datatype": datatype, "shape": [1, 2], "parameters": parameters}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    async with chain.session.post(
        chain.url(V2_PATH), data=head + data, headers={LENGTH: str(len(head))}
    ) as response:
        body = await response.read()
        assert response.status == 200, body
        return body[int(response.headers[LENGTH]) :]


async def test_kserve_v1_says_the_same_through_the_sidecar_as_straight(
    tmp_path: Path, their_kserve: str
) -> None:
    async with in_front(their_kserve, tmp_path, ServerProtocol.V1) as chain:
        texts = ["1", "1.0", "[1, [2.5]]", '{"a": "ü", "b": null}', '"text"', "9007199254740993"]
        bodies = [f'{{"instances": [{text}, {text}]}}' for text in texts]
        bodies += [f'{{"instances": [{text}], "scale": 2.0}}' for text in texts]
        for through, straight in await both_ways(chain, their_kserve, V1_PATH, bodies):
            assert through[0] == 200
            assert through == straight


async def test_kserve_v1_refuses_one_row_of_32_and_the_others_are_right(
    tmp_path: Path, their_kserve: str
) -> None:
    async with in_front(their_kserve, tmp_path, ServerProtocol.V1) as chain:
        for bad, status in ((-1, 400), (-2, 500)):
            bodies = [f'{{"instances": [{i}]}}' for i in range(1, 32)]
            bodies.insert(3, f'{{"instances": [{bad}]}}')
            found = await both_ways(chain, their_kserve, V1_PATH, bodies)
            assert all(through == straight for through, straight in found)
            assert [through[0] for through, _ in found].count(200) == 31
            assert found[3][0][0] == status


@pytest.mark.parametrize("frank", [False, True], ids=["v2", "binary"])
async def test_kserve_v2_doubles_what_json_and_binary_callers_send(
    tmp_path: Path, their_kserve: str, frank_kserve: str, frank: bool
) -> None:
    url = frank_kserve if frank else their_kserve
    async with in_front(url, tmp_path, ServerProtocol.V2) as chain:
        data = struct.pack("<2f", 0.1, -3.0)
        sent = asyncio.create_task(binary(chain, "FP32", data))
        answers = await asyncio.gather(
            *(post(chain.session, chain.url(V2_PATH), tensor("FP32", [i, 0.5])) for i in range(9))
        )
        assert await sent == struct.pack("<2f", 0.2, -6.0)
        for i, (status, document) in enumerate(answers):
            assert status == 200, document
            assert [float(value) for value in document["outputs"][0]["data"]] == [2.0 * i, 1.0]
        refused = await post(chain.session, chain.url(V2_PATH), tensor("FP32", [-1.0, 0.5]))
        straight = await post(chain.session, url + V2_PATH, tensor("FP32", [-1.0, 0.5]))
        assert refused == straight
        assert refused[0] == 400
