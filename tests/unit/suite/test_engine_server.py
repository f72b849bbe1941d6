"""The simulated engine's server speaks as vLLM does, and goes wrong as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from support.engine import EngineSettings
from support.engine_events import whole_text
from support.engine_server import EngineServer

CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EngineServer]:
    settings = EngineSettings(step_seconds=0.002, max_num_seqs=2)
    async with EngineServer(settings=settings, adapters=["a", "b"]) as running:
        yield running


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def asking(tokens: int, *, path: str = CHAT, **other: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "w" * 40}]}
    given = prompt if path == CHAT else {"prompt": "w" * 40}
    return {"model": "m", "stream": True, "max_tokens": tokens, **given, **other}


def events(text: str) -> list[dict[str, Any]]:
    """All of a stream that has ended well, but for the end."""
    assert text.endswith("data: [DONE]\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def streamed(
    session: aiohttp.ClientSession, server: EngineServer, tokens: int, **other: Any
) -> list[dict[str, Any]]:
    path = other.get("path", CHAT)
    async with session.post(server.url + path, json=asking(tokens, **other)) as response:
        assert response.status == 200
        return events(await response.text())


async def test_a_chat_is_streamed_as_vllm_streams_it(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    body = asking(3, stream_options={"include_usage": True}, simulate={"mark": 7})
    async with session.post(server.url + CHAT, json=body) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Transfer-Encoding"] == "chunked"
        chunks = [one async for one, _ in response.content.iter_chunks() if one]
    said = events(b"".join(chunks).decode())
    assert {(one["id"], one["object"], one["model"]) for one in said} == {
        (said[0]["id"], "chat.completion.chunk", "m")
    }
    assert said[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [one["choices"][0] for one in said[1:-1]]
    assert [one["delta"]["content"] for one in deltas] == [" t7-0", " t7-1", " t7-2"]
    assert [one["finish_reason"] for one in deltas] == [None, None, "length"]
    assert said[-1]["choices"] == []
    assert said[-1]["usage"] == {"prompt_tokens": 10, "total_tokens": 13, "completion_tokens": 3}


async def test_a_completion_is_streamed_and_a_header_may_say_how_long_it_is(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    path = "/v1/completions"
    headers = {"X-Simulate": '{"tokens": 2, "mark": 5}', "X-Request-Id": "mine"}
    body = asking(9, path=path)
    async with session.post(server.url + path, json=body, headers=headers) as response:
        said = events(await response.text())
    assert [one["choices"][0]["text"] for one in said] == [" t5-0", " t5-1"]
    assert said[-1]["choices"][0]["finish_reason"] == "stop"
    assert said[0]["id"] == "cmpl-mine"


async def test_an_answer_may_come_whole(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    async with session.post(server.url + CHAT, json=asking(4, stream=False)) as response:
        document = await response.json()
    assert document["choices"][0]["message"]["content"] == whole_text(1, 4)
    assert document["usage"]["completion_tokens"] == 4


async def test_each_event_is_a_chunk_of_its_own(server: EngineServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps(asking(3)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    rest = answer.partition(b"\r\n\r\n")[2]
    sizes = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        sizes.append(int(size, 16))
        chunk, rest = rest[: sizes[-1]], rest[sizes[-1] + 2 :]
        assert chunk == b"" or (chunk.startswith(b"data: ") and chunk.endswith(b"\n\n"))
        assert chunk.count(b"data: ") == (chunk != b"")
    assert len(sizes) == 6  # whose turn it is, three tokens, the end, and the end of the chunks


async def test_metrics_tell_who_runs_and_who_waits_and_who_left(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    tasks = [
        asyncio.create_task(streamed(session, server, 10_000, model=name))
        for name in ("a", "b", "m")
    ]
    await until(lambda: server.counts()["waiting"] == 1)
    page = await told(session, server)
    assert page['vllm:num_requests_running{engine="0",model_name="m"}'] == 2
    assert page['vllm:num_requests_waiting{engine="0",model_name="m"}'] == 1
    used = page['vllm:kv_cache_usage_perc{engine="0",model_name="m"}']
    assert 20 / 262_144 < used < 0.1
    (lora,) = (name for name in page if name.startswith("vllm:lora_requests_info"))
    assert 'max_lora="2"' in lora
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: not server.counts()["running"] + server.counts()["waiting"])
    assert server.counts()["cancelled"] == 3
    page = await told(session, server)
    assert page['simulated:requests_cancelled_total{engine="0",model_name="m"}'] == 3


async def test_who_leaves_makes_room_for_who_waits(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    long = [asyncio.create_task(streamed(session, server, 10_000)) for _ in range(2)]
    await until(lambda: server.counts()["running"] == 2)
    short = asyncio.create_task(streamed(session, server, 2))
    await until(lambda: server.counts()["waiting"] == 1)
    long[0].cancel()
    assert len(await short) == 3
    assert server.counts()["running"] == 1
    long[1].cancel()
    await asyncio.gather(*long, return_exceptions=True)


@pytest.mark.parametrize("after", [0, 2])
async def test_a_stream_breaks_off_behind_the_tokens_that_were_sent(
    server: EngineServer, session: aiohttp.ClientSession, after: int
) -> None:
    body = asking(5, simulate={"breaks_off_after": after})
    async with session.post(server.url + CHAT, json=body) as response:
        text, ended = b"", None
        try:
            async for piece in response.content.iter_any():
                text += piece
        except aiohttp.ClientPayloadError as error:
            ended = error
    assert ended is not None
    assert text.count(b'"content":" t') == after
    assert b"DONE" not in text
    assert server.broken_off == 1
    assert server.counts()["cancelled"] == 0
    assert len(await streamed(session, server, 1)) == 2


async def test_a_stream_may_fail_by_an_event(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    said = await streamed(session, server, 5, simulate={"error_after": 2})
    assert len(said) == 4
    assert said[-1]["error"]["code"] == 500
    body = asking(5, stream=False, simulate={"error_after": 2})
    async with session.post(server.url + CHAT, json=body) as response:
        assert response.status == 500


async def test_refusals_have_their_status_and_when_to_try_again(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    body = asking(5, simulate={"status": 429, "retry_after": "3"})
    async with session.post(server.url + CHAT, json=body) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
        assert (await response.json())["error"]["type"] == "RateLimitError"
    async with session.post(server.url + CHAT, json=asking(5, model="another")) as response:
        assert response.status == 404
    async with session.post(server.url + CHAT, json={"messages": 5}) as response:
        assert response.status == 400
    assert server.counts()["steps"] == 0


async def test_an_engine_that_hangs_goes_on_when_it_is_told(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    server.stall()
    task = asyncio.create_task(streamed(session, server, 3))
    await until(lambda: server.counts()["waiting"] == 1)
    await asyncio.sleep(0.02)
    assert server.counts()["steps"] == 0
    server.go_on()
    assert len(await task) == 4


async def test_it_dies_and_comes_back_with_another_model(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    task = asyncio.create_task(streamed(session, server, 10_000))
    await until(lambda: server.counts()["running"] == 1)
    await server.dies()
    with pytest.raises(aiohttp.ClientError):
        await task
    with pytest.raises(aiohttp.ClientConnectorError):
        await streamed(session, server, 1)
    await server.comes_back("other")
    assert server.counts()["running"] == 0
    assert len(await streamed(session, server, 1, model="other")) == 2
    async with session.get(f"{server.url}/v1/models") as response:
        cards = (await response.json())["data"]
    assert [card["id"] for card in cards] == ["other", "a", "b"]
    assert cards[0]["max_model_len"] == 32_768


async def test_embeddings_are_there_too(
    server: EngineServer, session: aiohttp.ClientSession
) -> None:
    body = {"model": "m", "input": ["abcd", "abcdefgh"]}
    async with session.post(f"{server.url}/v1/embeddings", json=body) as response:
        document = await response.json()
    assert [one["embedding"] for one in document["data"]] == [[1.0, 1.0], [2.0, 1.0]]


async def told(session: aiohttp.ClientSession, server: EngineServer) -> dict[str, float]:
    async with session.get(f"{server.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


async def until(holds: Any) -> None:
    async with asyncio.timeout(10.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
