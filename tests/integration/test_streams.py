"""Generated text behind the sidecar: what callers get of a language model's server, and when."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.outcomes import Outcome
from support.books import assert_books_balance, settled
from support.chain import Chain, in_front_of
from support.engine_server import EngineServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT: Final = "/v1/chat/completions"
SETTINGS: Final = BatchSettings(max_concurrent_requests=8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineServer]:
    async with EngineServer() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    engine: EngineServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Chain]:
    """One for all, which must keep its books through all of it."""
    async with in_front(engine, tmp_path_factory.mktemp("streams")) as chain:
        yield chain
        await assert_books_balance(chain)


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain) -> Chain:
    await running.goes_by(SETTINGS)
    await assert_books_balance(running)
    return running


def in_front(engine: EngineServer, folder: Path, **settings: Any) -> Any:
    """A sidecar that is ready, in front of the engine."""
    protocol = ServerProtocol.OPENAI
    return in_front_of(
        engine.url, folder, upstream_protocol=protocol, settings=SETTINGS, **settings
    )


def chat(tokens: int = 5, *, stream: bool = True, text: str = "hello", **more: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "max_tokens": tokens, "stream": stream} | more


def texts(body: bytes) -> list[str]:
    """The text of each token of a stream."""
    found = []
    for line in body.split(b"\n\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                found += [choice["delta"]["content"]] if choice["delta"].get("content") else []
    return found


async def said(chain: Chain, document: Any, **headers: str) -> tuple[int, bytes]:
    async with chain.session.post(chain.url(CHAT), json=document, headers=headers) as response:
        return response.status, await response.read()


async def test_a_stream_comes_token_by_token_with_the_servers_headers(chain: Chain) -> None:
    loop, came = asyncio.get_running_loop(), list[float]()
    document = chat(10, simulate={"mark": 77})
    headers = {"x-request-id": "mine"}
    body = b""
    async with chain.session.post(chain.url(CHAT), json=document, headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert response.headers["x-request-id"] == "mine"
        async for piece in response.content.iter_any():
            came.append(loop.time())
            body += piece
    assert texts(body) == [f" t77-{number}" for number in range(10)]
    assert body.endswith(b"data: [DONE]\n\n")
    assert came[-1] - came[0] > 0.1
    assert len(came) >= 8


async def test_an_answer_that_is_no_stream_comes_whole(chain: Chain) -> None:
    status, body = await said(chain, chat(5, stream=False))
    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 5


async def test_a_large_prompt_streams_as_well(chain: Chain) -> None:
    status, body = await said(chain, chat(5, text="x" * 100_000))
    assert status == 200
    assert len(texts(body)) == 5


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_the_servers_errors_come_as_they_are(chain: Chain, status: int) -> None:
    told, body = await said(chain, chat(simulate={"status": status}))
    assert told == status
    assert json.loads(body)["error"]["code"] == status


async def test_a_body_that_is_no_json_is_refused_by_name(
    chain: Chain, engine: EngineServer
) -> None:
    before = len(engine.seen)
    async with chain.session.post(chain.url(CHAT), data=b"nonsense") as response:
        assert response.status == 400
        assert "is not JSON" in (await response.json())["error"]["message"]
    assert len(engine.seen) == before


async def test_a_server_that_breaks_off_ends_the_stream_with_an_error_event(chain: Chain) -> None:
    status, body = await said(chain, chat(simulate={"breaks_off_after": 3}))
    assert status == 200
    assert len(texts(body)) == 3
    last = body.strip().rpartition(b"\n\n")[2]
    assert json.loads(last[6:])["error"]["code"] == 503
    assert b"[DONE]" not in body


async def test_a_server_that_falls_silent_is_told_within_the_time_out(chain: Chain) -> None:
    headers = {"x-request-timeout-ms": "500"}
    status, body = await said(chain, chat(simulate={"hangs_after": 2}), **headers)
    assert status == 200
    assert len(texts(body)) == 2
    assert b'"code":504' in body
    status, body = await said(chain, chat(stream=False, simulate={"hangs_after": 0}), **headers)
    assert (status, json.loads(body)["error"]["code"]) == (504, "expired")


async def test_a_caller_that_leaves_ends_its_request_within_50_ms(
    chain: Chain, engine: EngineServer
) -> None:
    before = engine.counts()["cancelled"]
    async with chain.session.post(chain.url(CHAT), json=chat(1000)) as response:
        await response.content.readany()
        response.close()
    async with asyncio.timeout(0.25):  # the engine notices at its next step
        while engine.counts()["cancelled"] == before:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.005)


async def test_no_more_are_at_the_server_than_the_settings_say_and_the_rest_wait(
    chain: Chain, engine: EngineServer
) -> None:
    await chain.goes_by(BatchSettings(max_concurrent_requests=3))
    answers = [asyncio.create_task(said(chain, chat(10))) for _ in range(9)]
    most = 0
    while not all(one.done() for one in answers):
        counts = engine.counts()
        most = max(most, int(counts["running"] + counts["waiting"]))
        await asyncio.sleep(0.005)
    assert most == 3
    assert {status for status, _ in [await one for one in answers]} == {200}


async def test_the_age_of_what_waits_is_told(chain: Chain) -> None:
    await chain.goes_by(BatchSettings(max_concurrent_requests=1))
    answers = [asyncio.create_task(said(chain, chat(30))) for _ in range(2)]
    await asyncio.sleep(0.4)
    assert await chain.metric("batchedmodel_queue_oldest_age_seconds") > 0.2
    assert [status for status, _ in await asyncio.gather(*answers)] == [200, 200]


async def test_who_waits_for_too_long_is_told_so(chain: Chain) -> None:
    await chain.goes_by(BatchSettings(max_concurrent_requests=1))
    first = asyncio.create_task(said(chain, chat(60)))
    await asyncio.sleep(0.1)
    status, body = await said(chain, chat(5), **{"x-request-timeout-ms": "300"})
    assert (status, json.loads(body)["error"]["code"]) == (504, "expired")
    assert (await first)[0] == 200


async def test_a_caller_that_leaves_while_it_waits_is_forgotten(
    chain: Chain, engine: EngineServer
) -> None:
    await chain.goes_by(BatchSettings(max_concurrent_requests=1))
    before = await settled(chain, Outcome.CANCELLED)
    first = asyncio.create_task(said(chain, chat(30)))
    await asyncio.sleep(0.1)
    seen = len(engine.seen)
    leaving = asyncio.create_task(said(chain, chat(5)))
    await asyncio.sleep(0.1)
    leaving.cancel()
    assert (await first)[0] == 200
    async with asyncio.timeout(5.0):
        while await settled(chain, Outcome.CANCELLED) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(engine.seen) == seen


async def test_a_server_that_is_full_is_asked_again(chain: Chain, engine: EngineServer) -> None:
    before = len(engine.seen)
    status, _ = await said(chain, chat(simulate={"status": 503, "retry_after": "0"}))
    assert status == 503
    assert len(engine.seen) == before + 3


async def test_a_caller_of_http_1_0_gets_its_stream(chain: Chain) -> None:
    body = json.dumps(chat(5)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    writer.write(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert len(texts(rest)) == 5


async def test_a_caller_that_does_not_read_holds_little(chain: Chain, engine: EngineServer) -> None:
    """The server is held back, and what lies here stays small."""
    body = json.dumps(chat(100, simulate={"tokens": 100}, text="y")).encode()
    writers = []
    for _ in range(4):
        _, writer = await asyncio.open_connection("127.0.0.1", chain.port, limit=1024)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writers.append(writer)
    await asyncio.sleep(0.5)
    status, _ = await said(chain, chat(5))
    assert status == 200
    for writer in writers:
        writer.transport.abort()


async def test_a_drain_lets_streams_end_and_tells_the_rest_to_come_again(
    tmp_path: Path, engine: EngineServer
) -> None:
    settings = {"drain_delay_seconds": 0.0, "drain_timeout_seconds": 1.5}
    async with in_front(engine, tmp_path, **settings) as chain:
        await chain.ready()
        short = asyncio.create_task(said(chain, chat(20)))
        long = asyncio.create_task(said(chain, chat(1000)))
        await asyncio.sleep(0.2)
        chain.sidecar.send(signal.SIGTERM)
        await asyncio.sleep(0.1)
        refused, _ = await said(chain, chat(5))
        assert refused == 503
        status, body = await short
        assert (status, len(texts(body))) == (200, 20)
        status, body = await long
        assert status == 200
        assert b"this pod is stopping" in body
        assert b"[DONE]" not in body


async def test_a_server_that_comes_back_goes_on_with_what_waits(
    tmp_path: Path,
) -> None:
    async with EngineServer() as engine, in_front(engine, tmp_path) as chain:
        await chain.ready()
        await chain.goes_by(BatchSettings(max_concurrent_requests=1))
        first = asyncio.create_task(said(chain, chat(1000)))
        await asyncio.sleep(0.2)
        waiting = asyncio.create_task(said(chain, chat(5)))
        await asyncio.sleep(0.1)
        await engine.dies()
        assert b'"code":503' in (await first)[1]
        await asyncio.sleep(0.5)
        await engine.comes_back()
        async with asyncio.timeout(20.0):
            status, body = await waiting
        assert (status, len(texts(body))) == (200, 5)
        await assert_books_balance(chain)


async def test_a_caller_that_asks_again_behind_a_stream_never_meets_a_pod_that_is_stopping(
    tmp_path: Path, engine: EngineServer
) -> None:
    """A drain may begin in the midst of a stream, whose head can no longer tell of it."""
    settings = {"drain_delay_seconds": 0.1, "drain_timeout_seconds": 5.0}
    async with in_front(engine, tmp_path, **settings) as chain:
        await chain.ready()
        longer = asyncio.create_task(said(chain, chat(60)))
        async with chain.session.post(chain.url(CHAT), json=chat(20)) as response:
            chain.sidecar.send(signal.SIGTERM)
            assert len(texts(await response.read())) == 20
            assert response.headers["connection"] == "close"
        assert (await longer)[0] == 200


async def test_unused_connections_end_when_a_pod_refuses_and_streams_go_on(
    tmp_path: Path, engine: EngineServer
) -> None:
    """Whoever kept one would be told only that the pod is stopping."""
    settings = {"drain_delay_seconds": 0.1, "drain_timeout_seconds": 10.0}
    async with in_front(engine, tmp_path, **settings) as chain:
        await chain.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: m\r\n\r\n")
        await reader.readuntil(b"}]}")
        stream = asyncio.create_task(said(chain, chat(150)))
        await asyncio.sleep(1.2)
        chain.sidecar.send(signal.SIGTERM)
        assert b"HTTP" not in await reader.read()
        assert not stream.done()
        status, body = await stream
        assert (status, len(texts(body))) == (200, 150)
        writer.close()
