"""What bad callers and bad servers get: a clear answer for them alone, service for the others."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from batchedmodel_contract import server_api
from batchedmodel_contract.batch_wire import BatchReply, Ragged, to_request, write_reply
from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.tensors import Datatype
from batchedmodel_contract.v2 import HEADER_LENGTH, read_body
from support.chain import Chain, running_chain
from support.sidecar_world import DESCRIPTION, PROFILE

GOOD: dict[str, Any] = {
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all wrong requests: none of them may leave a trace."""
    async with running_chain(
        tmp_path_factory.mktemp("chain"),
        handler="simulated",
        parameters={"fixedSeconds": "0.005"},
        settings=BatchSettings(max_queue_size=64),
        max_body_bytes=100_000,
    ) as running:
        yield running


async def post(chain: Chain, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    url = chain.url(path)
    async with chain.session.post(url, data=body, headers=headers) as response:
        return response.status, await response.json()


def with_entry(**changes: Any) -> bytes:
    return json.dumps({"inputs": [GOOD["inputs"][0] | changes]}).encode()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "body: is not JSON"),
        (b'{"inputs": [', 400, "body: is not JSON"),
        (b"[" * 50_000, 400, "body: is not JSON"),
        (b"\xff\xfe", 400, "body: is not JSON"),
        (with_entry(shape=[1, 3]), 400, "inputs[0].data: has 2 values; the shape needs 3"),
        (with_entry(data=[1, "2"]), 400, "inputs[0].data: has a value that is not a INT64"),
        (with_entry(datatype="FP32"), 400, 'inputs.x.datatype: "FP32" is not INT64'),
        (with_entry(shape=[0, 2], data=[]), 400, "inputs.x.shape: [0, 2] has no rows"),
        (with_entry(shape=[65, 1], data=[1] * 65), 413, "65 rows in one request"),
        (b" " * 100_001, 413, "the body is larger than the 100000 bytes taken here"),
    ],
    ids=(
        "empty,cut off,deep,no text,shape,type,datatype,no rows,too many rows,too large".split(",")
    ),
)
async def test_a_wrong_body_is_answered_in_the_protocols_form_and_harms_nobody(
    chain: Chain, body: bytes, status: int, message: str
) -> None:
    good = json.dumps(GOOD).encode()
    wrong, *right = await asyncio.gather(
        post(chain, chain.infer_path, body),
        *(post(chain, chain.infer_path, good) for _ in range(8)),
    )
    assert wrong[0] == status
    assert wrong[1]["error"].startswith(message)
    assert [answer[0] for answer in right] == [200] * 8


async def test_a_chunked_body_is_bounded_too(chain: Chain) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b" " * 1000

    async with chain.session.post(chain.url(chain.infer_path), data=chunks()) as response:
        assert response.status == 413


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/v2/models/other/infer", 404, 'model: "other" is not served here; m is'),
        ("GET", "/v2/models/other", 404, 'model: "other" is not served here; m is'),
        ("GET", "/v2/models/m/infer", 405, "/v2/models/m/infer takes POST, not GET"),
        ("POST", "/nowhere", 404, 'there is nothing at "/nowhere"'),
    ],
)
async def test_a_wrong_path_says_what_is_there(
    chain: Chain, method: str, path: str, status: int, message: str
) -> None:
    async with chain.session.request(method, chain.url(path)) as response:
        assert response.status == status
        assert (await response.json())["error"] == message


async def test_openai_paths_answer_errors_in_openais_form(chain: Chain) -> None:
    status, answer = await post(chain, "/v1/embeddings", b'{"model": "other", "input": "a"}')
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"
    status, answer = await post(chain, "/v1/embeddings", b'{"model": "m", "input": "a"}')
    assert status == 400
    assert answer["error"]["message"] == 'model: "m" does not give embeddings'


async def test_a_full_queue_answers_429_with_a_delay(tmp_path: Path) -> None:
    settings = BatchSettings(max_batch_size=1, max_queue_size=2)
    async with running_chain(
        tmp_path, handler="simulated", parameters={"fixedSeconds": "0.5"}, settings=settings
    ) as chain:
        url = chain.url(chain.infer_path)

        async def call() -> tuple[int, str | None]:
            async with chain.session.post(url, json=GOOD) as response:
                return response.status, response.headers.get("Retry-After")

        answers = await asyncio.gather(*(call() for _ in range(12)))
        refused = [answer for answer in answers if answer[0] == 429]
        assert len(refused) >= 6
        assert all(delay is not None and int(delay) >= 1 for _, delay in refused)
        assert {status for status, _ in answers} == {200, 429}
        count = await chain.metric("batchedmodel_requests_rejected_total", reason="queue_full")
        assert count == len(refused)


class NonsenseServer:
    """A model server that shakes hands properly and then answers as the test says."""

    def __init__(self, socket: str) -> None:
        self.reply: tuple[int, bytes, dict[str, str]] | None = None
        self._socket = socket
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "NonsenseServer":
        application = web.Application()
        application.router.add_get(server_api.events_path("m"), self._events)
        application.router.add_get(server_api.model_path("m"), self._metadata)
        application.router.add_get(server_api.profile_path("m"), self._profile)
        application.router.add_post(server_api.infer_path("m"), self._infer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, self._socket).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"state": "READY", "detail": ""}\n')
        await asyncio.Event().wait()
        return response

    async def _metadata(self, request: web.Request) -> web.Response:
        return web.json_response(DESCRIPTION.to_metadata())

    async def _profile(self, request: web.Request) -> web.Response:
        return web.json_response(PROFILE.to_mapping())

    async def _infer(self, request: web.Request) -> web.Response:
        if self.reply is not None:
            status, body, headers = self.reply
            return web.Response(status=status, body=body, headers=headers)
        length = request.headers[HEADER_LENGTH]
        _, tensors = read_body(await request.read(), length, "inputs", json.loads)
        batch = to_request(tensors)
        return _encoded(_echo(batch.inputs[0]))


def _echo(rows: Ragged) -> BatchReply:
    output = Ragged(name="y", datatype=rows.datatype, shapes=rows.shapes, parts=(rows.data,))
    count = len(rows.shapes)
    return BatchReply(
        outputs=(output,),
        statuses=(200,) * count,
        errors=("",) * count,
        compute_seconds=0.001,
        queue_seconds=0.0,
        tokens=count,
        padded_tokens=count,
    )


def _encoded(reply: BatchReply) -> web.Response:
    length, parts = write_reply(reply)
    return web.Response(body=b"".join(parts), headers={HEADER_LENGTH: str(length)})


def _two_rows_for_one() -> tuple[int, bytes, dict[str, str]]:
    rows = Ragged(name="y", datatype=Datatype.UINT8, shapes=((1,), (1,)), parts=(b"\x01\x02",))
    response = _encoded(_echo(rows))
    assert isinstance(response.body, bytes)
    return 200, response.body, {HEADER_LENGTH: response.headers[HEADER_LENGTH]}


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ((200, b"hello", {}), 502),
        ((200, b"{}", {}), 502),
        ((200, b'{"outputs": [{"name": 3}]}', {HEADER_LENGTH: "9999"}), 502),
        (_two_rows_for_one(), 502),
        ((500, b"boom", {}), 502),
        ((400, b"what?", {}), 502),
        ((503, b"later", {}), 503),
    ],
    ids=["no JSON", "no outputs", "bad length", "two rows for one", "500", "400", "503"],
)
async def test_a_server_that_answers_nonsense_costs_its_callers_an_error_and_recovers(
    tmp_path: Path, reply: tuple[int, bytes, dict[str, str]], status: int
) -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 1], "data": [7]}]}'
    async with (
        NonsenseServer(str(tmp_path / "model.sock")) as server,
        running_chain(tmp_path, handler="simulated", start_model=False) as chain,
    ):
        await chain.ready()
        server.reply = reply
        seen = len(chain.sidecar.lines)
        answer = await post(chain, chain.infer_path, body)
        assert answer[0] == status
        assert answer[1]["error"]
        server.reply = None
        if status == 502:
            await chain.sidecar.wait_for("model not ready", after=seen)
            await chain.ready(after=seen)
        status, document = await post(chain, chain.infer_path, body)
        assert (status, document["outputs"][0]["data"]) == (200, [7])
