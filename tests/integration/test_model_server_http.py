"""HTTP on the model server's socket, in its own words: of the wire, and of nothing behind it.

Small batches are answered on connections of its own, the rest by aiohttp, and nobody can tell the
two apart. All other tests of the model server speak by `support.private_hop`.
"""

import asyncio
import contextlib
import signal
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pytest
import pytest_asyncio

from batchedmodel_contract.inference import packed
from batchedmodel_contract.inference.batch_wire import read_reply, write_request
from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.inference.v2 import HEADER_LENGTH, read_body, write_body
from batchedmodel_contract.processes.server_api import (
    ModelState,
    events_path,
    infer_path,
    model_path,
)
from support.model_server_process import NAME, ModelServerProcess, model_server, token_batch
from support.raw_caller import request

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CHUNK: Final = 16
"""A body in chunks has no length that is known, so aiohttp receives it."""


class Caller:
    """One connection to the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer: Final = writer

    async def asks(self, wire: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers in lower case and body of the answer to these bytes."""
        self.writer.write(wire)
        return await self.hears()

    async def hears(self) -> tuple[int, Mapping[str, str], bytes]:
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await self._reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, body

    async def hears_the_end(self) -> bytes:
        return await self._reader.read()


@asynccontextmanager
async def calling(server: ModelServerProcess) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_unix_connection(str(server.socket))
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


async def said(server: ModelServerProcess, wire: bytes) -> tuple[int, Any]:
    """Status and JSON document of the answer to these bytes."""
    async with calling(server) as caller:
        status, _, body = await caller.asks(wire)
        return status, orjson.loads(body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def simulated(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ModelServerProcess]:
    async with model_server(tmp_path_factory.mktemp("simulated")) as server:
        assert (await server.settled()).state is ModelState.READY
        yield server


def batch(*items: list[int]) -> tuple[bytes, str]:
    """Body and header of a batch."""
    length, parts = write_request(token_batch("x", items))
    return b"".join(parts), f"{HEADER_LENGTH}: {length}"


def plain(**fields: object) -> tuple[bytes, str]:
    tensor = {"name": "x", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]}
    return orjson.dumps({"inputs": [tensor], **fields}), "x-nothing: 1"


ASKED: Final = {
    "a batch": (infer_path(NAME), *batch([1, 2], [3])),
    "a wrong batch": (infer_path(NAME), batch([1])[0], f"{HEADER_LENGTH}: 7"),
    "a plain request": (infer_path(NAME), *plain(id="one")),
    "a version": (infer_path(NAME, "1"), *plain()),
    "an unknown version": (infer_path(NAME, "9"), *plain()),
    "a version with a slash": (infer_path(NAME, "1%2F2"), *plain()),
    "another model": (infer_path("other"), *plain()),
    "no JSON": (infer_path(NAME), b"{", "x-nothing: 1"),
    "no body": (infer_path(NAME), b"", "x-nothing: 1"),
    "no path of ours": (f"{infer_path(NAME)}/more", *plain()),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_both_ways_answer_the_same(
    simulated: ModelServerProcess, asked: tuple[str, bytes, str]
) -> None:
    path, body, header = asked
    async with calling(simulated) as caller:
        here = await caller.asks(request(path, body, header))
        by_aiohttp = await caller.asks(request(path, body, header, chunks=_CHUNK))
    assert _content(*here) == _content(*by_aiohttp)


def _content(status: int, headers: Mapping[str, str], body: bytes) -> tuple[object, ...]:
    """All that an answer says but for how long it took."""
    kind, length = headers["content-type"].split(";")[0], headers.get(HEADER_LENGTH.lower())
    if length is None:
        return status, kind, orjson.loads(body)
    reply = read_reply(body, length)
    outputs = [(one.name, one.datatype, one.shapes, bytes(one.data)) for one in reply.outputs]
    return status, kind, outputs, reply.statuses, reply.errors, reply.tokens


@pytest.mark.parametrize("chunks", [0, _CHUNK], ids=["here", "by aiohttp"])
async def test_a_packed_batch_is_answered_as_a_plain_one_and_packed_where_that_is_asked_for(
    simulated: ModelServerProcess, chunks: int
) -> None:
    body, header = batch([1, 2], [3])
    asks, is_packed = f"Accept: {packed.PACKED}", f"Content-Type: {packed.PACKED}"
    sent = b"".join(packed.write_batch(token_batch("x", [[1, 2], [3]])))
    spoilt = b"".join(packed.write_batch(token_batch("x", [[1], []])))
    path = infer_path(NAME)
    async with calling(simulated) as caller:
        plainly = await caller.asks(request(path, body, header, chunks=chunks))
        unasked = await caller.asks(request(path, sent, is_packed, chunks=chunks))
        assert _content(*unasked) == _content(*plainly)
        for one in (
            request(path, body, header, asks, chunks=chunks),
            request(path, sent, is_packed, asks, chunks=chunks),
        ):
            status, headers, answer = await caller.asks(one)
            assert (status, headers["content-type"]) == (200, packed.PACKED)
            reply = packed.read_reply(answer)
            assert [bytes(item) for item in reply.outputs[0].items()] == [
                struct.pack("<2q", 1, 2),
                struct.pack("<q", 3),
            ]
        # A reply with a failed item says more than a packed one can.
        refused = await caller.asks(request(path, spoilt, is_packed, asks, chunks=chunks))
        length = refused[1][HEADER_LENGTH.lower()]
        assert read_reply(refused[2], length).statuses == (200, 400)
        broken = await caller.asks(request(path, sent[:-1], is_packed, asks, chunks=chunks))
        assert (broken[0], b"leads past the end" in broken[2]) == (400, True)


async def test_requests_of_all_kinds_follow_each_other_on_one_connection(
    simulated: ModelServerProcess,
) -> None:
    body, header = batch([1, 2], [3])
    wire = request(infer_path(NAME), body, header)
    async with calling(simulated) as caller:
        for asked in (wire, request(model_path(NAME), method="GET"), wire, wire[:-1], wire):
            caller.writer.write(asked)
            if asked is not wire and asked in wire:
                await asyncio.sleep(0.1)  # by when the rest is waited for by aiohttp
                caller.writer.write(wire[-1:])
            assert (await caller.hears())[0] == 200
        assert [(await caller.asks(wire))[0] for _ in range(3)] == [200] * 3


async def test_a_body_that_goes_on_with_no_chunk_is_refused_and_ends_the_connection(
    simulated: ModelServerProcess,
) -> None:
    body, header = batch([1])
    wire = request(infer_path(NAME), body, header, chunks=_CHUNK)
    async with asyncio.timeout(5.0), calling(simulated) as caller:
        caller.writer.write(wire.removesuffix(b"0\r\n\r\n"))
        await asyncio.sleep(0.1)
        status, headers, _ = await caller.asks(b"two\r\n")
        assert (status, headers["connection"]) == (400, "close")
        assert await caller.hears_the_end() == b""


class Drain(NamedTuple):
    """What connections of one server heard when it was told to stop."""

    answers: Mapping[int, tuple[int, Mapping[str, str]]]
    """To those at work, by the size of the chunks that they sent; 0: their bodies had a length."""
    rests: Mapping[int, bytes]
    idle: Mapping[int, bytes]
    followed: bytes
    code: int
    seconds: float
    """From the order to the end of the process."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drain(tmp_path_factory: pytest.TempPathFactory) -> Drain:
    """A server is told to stop while two are at work, two are idle and one follows the events."""
    parameters = {"fixedSeconds": "0.5", "rowSeconds": "0"}
    body, header = batch([1])
    wires = {size: request(infer_path(NAME), body, header, chunks=size) for size in (0, _CHUNK)}
    now = asyncio.get_running_loop().time
    async with (
        model_server(tmp_path_factory.mktemp("drain"), parameters=parameters) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        assert (await server.settled()).state is ModelState.READY
        at_work = {size: await stack.enter_async_context(calling(server)) for size in wires}
        idle = {size: await stack.enter_async_context(calling(server)) for size in wires}
        follows = await stack.enter_async_context(calling(server))
        for size, wire in wires.items():
            assert (await idle[size].asks(wire))[0] == 200
        follows.writer.write(request(events_path(NAME), method="GET"))
        for size, wire in wires.items():
            at_work[size].writer.write(wire)
        await asyncio.sleep(0.1)
        told = now()
        server.process.send_signal(signal.SIGTERM)
        answers = {size: (await one.hears())[:2] for size, one in at_work.items()}
        rests = {size: await one.hears_the_end() for size, one in at_work.items()}
        idle_heard = {size: await one.hears_the_end() for size, one in idle.items()}
        followed = await follows.hears_the_end()
        code = await server.process.wait()
        return Drain(answers, rests, idle_heard, followed, code, now() - told)


@pytest.mark.parametrize("chunks", [0, _CHUNK], ids=["received here", "received by aiohttp"])
async def test_a_drain_answers_what_is_at_work_and_hangs_up_behind_it(
    drain: Drain, chunks: int
) -> None:
    status, headers = drain.answers[chunks]
    assert (status, headers["connection"]) == (200, "close")
    assert drain.rests[chunks] == b""
    assert drain.idle[chunks] == b""
    assert drain.code == 0
    # Five seconds are what a connection gets that does not end behind its answer.
    assert drain.seconds < 4


async def test_a_drain_does_not_wait_for_whoever_only_follows(drain: Drain) -> None:
    assert drain.followed.endswith(b"0\r\n\r\n")
    assert drain.code == 0
    # Five seconds are what connections at work get at the end.
    assert drain.seconds < 4


async def test_a_server_that_is_held_up_refuses_no_connection(
    simulated: ModelServerProcess,
) -> None:
    simulated.process.send_signal(signal.SIGSTOP)
    try:
        with contextlib.ExitStack() as connections:
            for _ in range(300):
                caller = connections.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                caller.connect(str(simulated.socket))
    finally:
        simulated.process.send_signal(signal.SIGCONT)


async def test_slow_callers_keep_nobody_from_an_answer(simulated: ModelServerProcess) -> None:
    body, header = batch([1, 2], [3])
    async with AsyncExitStack() as stack:
        for number in range(600):
            slow = await stack.enter_async_context(calling(simulated))
            slow.writer.write(b"POST /v2/models/")  # a head that does not go on
            if number % 10 == 0:
                async with calling(simulated) as caller:
                    answer = await caller.asks(request(infer_path(NAME), body, header))
                    assert answer[0] == 200


async def test_a_plain_json_request_is_answered_in_json(simulated: ModelServerProcess) -> None:
    tensor = {"name": "x", "datatype": "INT64", "shape": [2, 2], "data": [[1, 2], [3, 4]]}
    body = orjson.dumps({"id": "a", "inputs": [tensor]})
    status, answer = await said(simulated, request(infer_path(NAME), body))
    assert status == 200
    assert answer == {
        "model_name": NAME,
        "model_version": "1",
        "id": "a",
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 4]}],
    }


async def test_each_output_is_answered_in_the_form_it_was_asked_for(tmp_path: Path) -> None:
    wishes = [{"name": "y"}, {"name": "sum", "parameters": {"binary_data": True}}]
    body = orjson.dumps({"inputs": [X], "outputs": wishes})
    async with (
        model_server(tmp_path, "support.model_server_handlers:Echo") as server,
        calling(server) as caller,
    ):
        assert (await server.settled()).state is ModelState.READY
        _, headers, content = await caller.asks(request(infer_path(NAME), body))
    length = headers[HEADER_LENGTH.lower()]
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
    wire = request(infer_path(NAME), b"".join(parts), f"{HEADER_LENGTH}: {length}")
    async with calling(simulated) as caller:
        _, headers, content = await caller.asks(wire)
    _, (output,) = read_body(content, headers[HEADER_LENGTH.lower()], "outputs", orjson.loads)
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
            status, answer = await said(simulated, request(infer_path(NAME), body))
            assert status == 400
            assert message in answer["error"]


async def test_other_models_and_paths_are_not_found(simulated: ModelServerProcess) -> None:
    status, answer = await said(simulated, request(model_path("other"), method="GET"))
    assert (status, answer) == (404, {"error": "model 'other' is not served here, only 'model'"})
    assert (await said(simulated, request("/nowhere", method="GET")))[0] == 404
    status, answer = await said(simulated, request(infer_path(NAME), method="GET"))
    assert status == 405
    assert "error" in answer


async def test_the_server_says_what_it_speaks_and_that_it_is_ready(
    simulated: ModelServerProcess,
) -> None:
    _, server = await said(simulated, request("/v2", method="GET"))
    assert "batchedmodel.batch" in server["extensions"]
    for path in ("/v2/health/live", "/v2/health/ready", f"{model_path(NAME)}/ready"):
        assert (await said(simulated, request(path, method="GET")))[0] == 200


async def test_a_server_that_loads_is_live_and_not_ready(tmp_path: Path) -> None:
    async with model_server(tmp_path, "support.model_server_handlers:Slow") as server:
        assert (await said(server, request("/v2/health/live", method="GET")))[0] == 200
        assert (await said(server, request("/v2/health/ready", method="GET")))[0] == 503


async def test_a_declared_body_beyond_the_limit_is_refused(simulated: ModelServerProcess) -> None:
    # Streamed by hand: the server must refuse by the length alone, before a gigabyte was sent.
    reader, writer = await asyncio.open_unix_connection(str(simulated.socket))
    head = f"POST {infer_path(NAME)} HTTP/1.1\r\nHost: m\r\nContent-Length: {2 << 30}\r\n\r\n"
    writer.write(head.encode())
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()
