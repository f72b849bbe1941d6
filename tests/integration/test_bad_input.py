"""What bad callers and bad servers get: a clear answer for them alone, service for the others."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from batchedmodel_contract.inference.batch import (
    BatchReply,
    BatchRequest,
    Ragged,
)
from batchedmodel_contract.inference.description import RAGGED
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.backends.upstream.protocol import BackendRequest, NotReady
from batchedmodel_sidecar.errors import Unserved
from support.chain import Chain, running_chain
from support.echo_server import EchoServer, echoed, echoing
from support.private_hop import HopError, Nonsense, nonsense

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
        # What is counted as refused has its reason; a question about the model is no call.
        reason = "invalid" if method == "POST" else None
        assert response.headers.get("x-request-outcome") == reason


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


QUOTED: Final = "hunter2"
"""Part of answers, which may be what a caller sent."""


class NonsenseServer(EchoServer):
    """A model server that shakes hands properly and then answers as the test says."""

    def __init__(self) -> None:
        super().__init__(echoing(x=(Datatype.UINT8, (RAGGED,))))
        self.reply: BatchReply | Nonsense | HopError | None = None

    async def answer(self, batch: BatchRequest) -> BatchReply | Nonsense:
        if self.reply is None:
            return await super().answer(batch)
        if isinstance(self.reply, HopError):
            raise self.reply
        return self.reply


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talking(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[NonsenseServer, Chain]]:
    """One for all its answers, of which it must recover each time; and the sidecar."""
    server, folder = NonsenseServer(), tmp_path_factory.mktemp("talking")
    async with (
        server.serving(folder / "model.sock"),
        running_chain(folder, handler="simulated", start_model=False) as chain,
    ):
        await chain.ready()
        yield server, chain


def _two_rows_for_one() -> BatchReply:
    rows = Ragged(name="x", datatype=Datatype.UINT8, shapes=((1,), (1,)), parts=(b"\x01\x02",))
    return echoed(BatchRequest(inputs=(rows,)))


WRONG: Final[Mapping[str, tuple[BatchReply | Nonsense | HopError, int]]] = {
    **{name: (one, 502) for name, one in nonsense(QUOTED).items()},
    "two rows for one": (_two_rows_for_one(), 502),
    "500": (HopError(500, QUOTED), 502),
    "400": (HopError(400, QUOTED), 502),
    "503": (HopError(503, QUOTED), 503),
}


@pytest.mark.parametrize(("reply", "status"), WRONG.values(), ids=WRONG)
async def test_a_server_that_answers_nonsense_costs_its_callers_an_error_and_recovers(
    talking: tuple[NonsenseServer, Chain],
    reply: BatchReply | Nonsense | HopError,
    status: int,
) -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 1], "data": [7]}]}'
    server, chain = talking
    server.reply = reply
    seen = len(chain.sidecar.lines)
    answer = await post(chain, chain.infer_path, body)
    assert answer[0] == status
    assert answer[1]["error"]
    other = await post(chain, chain.infer_path, body)
    assert other[0] in (status, 503)
    if isinstance(reply, HopError):
        assert QUOTED in answer[1]["error"]
    if other[0] != status:
        assert QUOTED not in other[1]["error"], "others hear nothing of it"
    assert not any(QUOTED in line for line in chain.sidecar.lines[seen:]), "it may quote a request"
    server.reply = None
    if status == 502:
        await chain.sidecar.wait_for("model not ready", after=seen)
        await chain.ready(after=seen)
    status, document = await post(chain, chain.infer_path, body)
    assert (status, document["outputs"][0]["data"]) == (200, [7])


async def test_of_an_answer_that_is_no_http_the_log_quotes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nhunter2\r\n\r\n")
        await writer.drain()
        writer.close()

    caplog.set_level(logging.DEBUG)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = Client(f"http://127.0.0.1:{port}", keeps=lambda: True)
        with pytest.raises(Unserved, match="no HTTP"):
            await client.post(BackendRequest(path="/", headers=(), parts=(b"{}",)), 5.0)
        with pytest.raises(NotReady):
            await client.ask("/")
        await client.close()
    assert "batch: the model answers nonsense" in caplog.text
    assert "hunter2" not in caplog.text
