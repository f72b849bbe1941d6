"""Compressed requests and answers through a real sidecar."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.inference.description import RAGGED
from batchedmodel_contract.inference.tensors import Datatype
from support.chain import Chain
from support.echo_server import echo_chain, echoing
from support.process_memory import peak_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = echoing(x=(Datatype.INT64, (RAGGED,)))
LIMIT = 2_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("compressed")
    async with echo_chain(
        folder, MODEL, max_body_bytes=LIMIT, max_queue_bytes=2 * LIMIT
    ) as running:
        yield running


def body(size: int = 4) -> bytes:
    entry = {"name": "x", "datatype": "INT64", "shape": [1, size], "data": [7] * size}
    return json.dumps({"inputs": [entry]}).encode()


async def ask(chain: Chain, data: Any, **headers: str) -> tuple[int, Any]:
    url = chain.url(chain.infer_path)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with chain.session.post(url, data=data, headers=named) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [(gzip.compress(body()), "gzip"), (zlib.compress(body()), "deflate"), (body(), "identity")],
    ids=["gzip", "deflate", "identity"],
)
async def test_a_compressed_request_is_answered(chain: Chain, packed: bytes, encoding: str) -> None:
    status, answer = await ask(chain, packed, Content_Encoding=encoding)
    assert (status, answer["outputs"][0]["data"]) == (200, [7] * 4)


async def test_a_long_one_is_inflated_aside(chain: Chain) -> None:
    packed = gzip.compress(body(200_000), 0)
    status, answer = await ask(chain, packed, Content_Encoding="gzip")
    assert (status, len(answer["outputs"][0]["data"])) == (200, 200_000)


async def test_the_bound_holds_for_what_a_body_becomes(chain: Chain) -> None:
    bomb = gzip.compress(bytes(200_000_000))
    assert len(bomb) < LIMIT
    status, answer = await ask(chain, bomb, Content_Encoding="gzip")
    assert status == 413
    assert answer["error"].endswith("once inflated")
    assert peak_bytes(chain.sidecar.pid) < 150_000_000
    assert (await ask(chain, body()))[0] == 200


async def test_what_is_not_what_it_says_is_refused(chain: Chain) -> None:
    status, answer = await ask(chain, body(), Content_Encoding="gzip")
    assert (status, answer["error"].split(":")[0]) == (400, "body")
    status, answer = await ask(chain, body(), Content_Encoding="br")
    assert status == 415
    assert answer["error"] == 'Content-Encoding: "br" is not one of gzip, deflate'


async def test_only_large_answers_are_compressed_and_only_on_request(chain: Chain) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for size, asked, packed in (
            (50_000, "gzip", True),
            (50_000, "identity", False),
            (10, "gzip", False),
        ):
            headers = {"Accept-Encoding": asked}
            url = chain.url(chain.infer_path)
            async with session.post(url, data=body(size), headers=headers) as response:
                content = await response.read()
                assert response.headers.get("Content-Encoding") == ("gzip" if packed else None)
            answer = json.loads(gzip.decompress(content) if packed else content)
            assert answer["outputs"][0]["shape"] == [1, size]
