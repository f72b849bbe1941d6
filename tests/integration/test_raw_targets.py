"""Path and query reach an upstream server byte for byte, and only paths that are passed on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.behind import Behind, in_front
from support.books import assert_books_balance
from support.chain import Chain

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1,2],"data":[1,2]}]}'
INFER = "/v2/models/m/infer"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, stands_behind: Behind
) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("raw")
    async with in_front(stands_behind, folder, pass_paths=("/v2/logging", "/tools/*")) as chain:
        yield chain
        await assert_books_balance(chain)


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain, stands_behind: Behind) -> Chain:
    stands_behind.forget()
    return running


async def ask(chain: Chain, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and the rest of the answer to a target that nobody has touched."""
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return int(answer.split()[1]), answer


@pytest.mark.parametrize(
    "target",
    [
        f"{INFER}?sequence=7",
        f"{INFER}?a=%2f%41+b&a",
        "/v2/models/m/versions/3/infer?a=%23",
        f"{INFER}?next=http://a.example/x?y",
        f"{INFER}?",
        "/v2/models/m/versions/a.b-c/infer?",
    ],
)
async def test_an_inference_takes_its_query_along(
    chain: Chain, stands_behind: Behind, target: str
) -> None:
    await ask(chain, "POST", target, BODY)
    assert {request.raw_path for request in stands_behind.seen} == {target}


async def test_requests_of_different_queries_never_share_a_batch(
    chain: Chain, stands_behind: Behind
) -> None:
    queries = ["?a=1", "?a=2", "", "?", "?a=http://b/", "?a=http://c/", "?a=1"]
    await asyncio.gather(*(ask(chain, "POST", INFER + query, BODY) for query in queries))
    asked = {request.raw_path for request in stands_behind.seen}
    assert asked == {INFER + query for query in queries}


@pytest.mark.parametrize(
    "version",
    ["1%23x", "1%3Fx", "1%2F..%2F..", "..%2f..%2f..%2frepository", "%2e%2e", "..", ".", "a%00"],
)
async def test_a_version_is_never_decoded_into_another_resource(
    chain: Chain, stands_behind: Behind, version: str
) -> None:
    for method, behind in (("POST", "/infer"), ("GET", ""), ("GET", "/ready"), ("GET", "/config")):
        target = f"/v2/models/m/versions/{version}{behind}"
        status, _ = await ask(chain, method, target, BODY if method == "POST" else b"")
        assert status == 404
    assert not stands_behind.seen


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v2/repository/models/m/unload"),
        ("POST", "/v2/repository/index"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/r/register"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
        ("POST", "/v2/models/m/trace/setting"),
        ("POST", "/v2/trace/setting"),
        ("GET", "/metrics"),
        ("POST", "/v2/models/../repository/models/m/unload"),
        ("POST", "/v2/models/m/..;/infer"),
        ("POST", "/v2/models/..;/infer"),
        ("POST", "//v2/repository/models/m/unload"),
        ("GET", "//v2/models/other"),
        ("GET", "/v2/models//other"),
        ("GET", "/v2/models/a%2Fb"),
        ("GET", "/tools/../v2/repository"),
        ("GET", "/tools/%2e%2e/v2/repository"),
        ("GET", "/tools/a//b"),
        ("GET", "/tools"),
        ("POST", "/v2/logging/more"),
        ("POST", "/v2/%6cogging"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/models/m:predict"),
    ],
)
async def test_an_administrative_or_odd_path_is_answered_here(
    chain: Chain, stands_behind: Behind, method: str, target: str
) -> None:
    status, answer = await ask(chain, method, target)
    assert status == 404
    assert b"passPaths" in answer
    assert not stands_behind.seen


async def test_a_target_that_is_no_url_is_refused(chain: Chain, stands_behind: Behind) -> None:
    for target in (f"{INFER}?a#b", f"{INFER}?caf\u00e9", "/v2/models/caf\u00e9", "/v2/models/m#x"):
        status, _ = await ask(chain, "POST", target, BODY)
        assert status == 400
    assert not stands_behind.seen


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v2/models/other"),
        ("GET", "/v2/models/other/ready"),
        ("GET", "/v2/models/m/config?x=%2f"),
        ("GET", "/v2/models/m/config?"),
        ("GET", "/v2/models/m/config?x=http://a.example/b"),
        ("GET", "/v2/models/m/versions/1/stats"),
        ("HEAD", "/v2/models/other"),
        ("POST", "/v2/models/other/infer?q=1&%41"),
        ("POST", "/v2/models/m/generate_stream"),
        ("GET", "/health"),
        ("PUT", "/v2/logging?a=%2F"),
        ("DELETE", "/tools/a/b:c"),
        ("POST", "http://x/v2/models/other/infer?a=%2F"),
    ],
)
async def test_inference_metadata_health_and_what_the_manifest_names_go_on(
    chain: Chain, stands_behind: Behind, method: str, target: str
) -> None:
    status, _ = await ask(chain, method, target)
    assert status == 200
    (request,) = stands_behind.seen
    assert (request.method, request.raw_path) == (method, target.removeprefix("http://x"))


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT", "OPTIONS"])
async def test_an_inference_takes_post_alone(
    chain: Chain, stands_behind: Behind, method: str
) -> None:
    for path in (INFER, "/v2/models/m/versions/1/infer", "/v2/models/other/infer"):
        async with chain.session.request(method, chain.url(path)) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
            document: Any = None if method == "HEAD" else await response.json()
        assert method == "HEAD" or f"takes POST, not {method}" in document["error"]
    assert not stands_behind.seen
