"""The compiled load generator against real servers: counts, framing, failures, arrival times."""

import asyncio
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from os import environ
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from load_generator import (
    ClosedLoop,
    GivenArrivals,
    Load,
    LoadGeneratorError,
    LoadResult,
    PoissonArrivals,
    Target,
    build_load_generator,
    read_latencies,
    run_load,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """An aiohttp server that answers every request by `handler`; gives its port."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        assert server.port is not None
        yield server.port


@asynccontextmanager
async def serving_bytes(answer: bytes, *, closes: bool = False) -> AsyncIterator[int]:
    """A server that sends exactly these bytes per request, in small pieces; gives its port."""
    connections: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for start in range(0, len(answer), 7):
                    writer.write(answer[start : start + 7])
                    await asyncio.sleep(0)
                await writer.drain()
                if closes:
                    return
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*filter(None, connections))


async def load(target: Target, load: Load, *, timeout_seconds: float = 10.0) -> LoadResult:
    return await asyncio.to_thread(run_load, target, load, timeout_seconds=timeout_seconds)


async def answer_ok(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(text="ok")


async def test_exactly_the_requests_asked_for_are_sent_and_counted() -> None:
    seen: list[tuple[str, str, str | None, bytes]] = []

    async def record(request: web.Request) -> web.Response:
        body = await request.read()
        seen.append((request.method, request.path_qs, request.headers.get("X-Test"), body))
        return web.Response(body=b"12345")

    async with serving(record) as port:
        target = Target(port=port, path="/infer?v=1", headers={"X-Test": "a: b"}, bodies=[b"{}"])
        result = await load(target, ClosedLoop(connections=8, requests=100))

    assert seen == [("POST", "/infer?v=1", "a: b", b"{}")] * 100
    assert (result.requests, result.ok, result.statuses) == (100, 100, {200: 100})
    assert result.errors.total == 0
    assert result.bytes_received > 100 * 5
    assert 0 < result.latency.p50 <= result.latency.p99 <= result.latency.max


async def test_bodies_are_sent_in_turn() -> None:
    seen: list[bytes] = []

    async def record(request: web.Request) -> web.Response:
        seen.append(await request.read())
        return web.Response()

    bodies = [b"first", b"", b"x" * 300_000]
    async with serving(record) as port:
        await load(Target(port=port, bodies=bodies), ClosedLoop(connections=1, requests=6))

    assert seen == bodies * 2


async def test_a_get_request_has_no_body() -> None:
    async def check(request: web.Request) -> web.Response:
        ok = request.method == "GET" and not request.body_exists
        return web.Response(status=200 if ok else 400)

    async with serving(check) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=2, requests=10))

    assert result.statuses == {200: 10}


async def test_statuses_are_counted_and_latency_is_that_of_the_good_answers(
    tmp_path: Path,
) -> None:
    turns = 0

    async def alternate(request: web.Request) -> web.Response:
        nonlocal turns
        turns += 1
        return web.Response(status=[200, 429, 503][turns % 3])

    latencies = tmp_path / "latencies"
    async with serving(alternate) as port:
        result = await asyncio.to_thread(
            run_load,
            Target(port=port),
            ClosedLoop(connections=4, requests=60),
            latencies_file=latencies,
        )

    assert result.statuses == {200: 20, 429: 20, 503: 20}
    assert (result.requests, result.ok) == (60, 20)
    values = sorted(read_latencies(latencies))
    assert len(values) == 20
    assert (values[9], values[17], values[-1]) == (
        result.latency.p50,
        result.latency.p90,
        result.latency.max,
    )


async def test_without_a_good_answer_no_latency_reaches_a_goal() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=503)

    async with serving(refuse) as port:
        result = await load(Target(port=port), ClosedLoop(connections=1, requests=3))

    assert result.rate == 0
    assert not result.latency.p50 < 1e9


async def test_a_connection_that_the_server_closes_is_opened_again_without_an_error() -> None:
    connections: set[object] = set()

    async def close_after(request: web.Request) -> web.Response:
        connections.add(request.transport)
        response = web.Response(text="bye")
        response.force_close()
        return response

    async with serving(close_after) as port:
        result = await load(Target(port=port), ClosedLoop(connections=4, requests=40))

    assert result.statuses == {200: 40}
    assert result.errors.total == 0
    assert len(connections) == 40


async def test_an_idle_connection_that_was_closed_unannounced_is_opened_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    arrivals = GivenArrivals(offsets_microseconds=[0, 200_000, 400_000])

    async with serving_bytes(answer, closes=True) as port:
        result = await load(Target(port=port, method="GET"), arrivals)

    assert result.statuses == {200: 3}
    assert result.errors.total == 0


async def test_chunked_answers_are_read_to_their_end() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for size in (1, 70_000, 500_000):
            await response.write(b"c" * size)
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    async with serving(stream) as port:
        result = await load(Target(port=port), ClosedLoop(connections=4, requests=20))

    assert result.statuses == {200: 20}
    assert result.bytes_received > 20 * 570_001


WHOLE_ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "bare line feeds and odd case": b"HTTP/1.1 200 OK\ncONTENT-lENGTH:5  \n\nhello",
    "no reason phrase": b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
    "chunks with extension and trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 1\r\n\r\n"
        b"A;x=y\r\n0123456789\r\n1 \r\nz\r\n0\r\nDigest: abc\r\n\r\n"
    ),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "interim answer first": (
        b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!"
    ),
    "equal lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n!",
    "long foreign header": (
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 4000 + b"\r\nContent-Length: 1\r\n\r\n!"
    ),
}
ANSWERS_ENDED_BY_CLOSING = {
    "no length": b"HTTP/1.1 200 OK\r\n\r\nto the end",
    "old version": b"HTTP/1.0 200 OK\r\n\r\nto the end",
    "coding without chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nto the end",
    "announced": b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\n!",
}
MALFORMED_ANSWERS = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "wrong version": b"HTTP/2.0 200 OK\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "unequal lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n!!",
    "huge length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "wrong chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunk longer than said": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n"
    ),
    "header without colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    "unasked upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
}
CUT_ANSWERS = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
}


@pytest.mark.parametrize("answer", WHOLE_ANSWERS.values(), ids=WHOLE_ANSWERS)
async def test_a_whole_answer_leaves_the_connection_usable(answer: bytes) -> None:
    async with serving_bytes(answer) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert result.ok == 3
    assert result.bytes_received == 3 * len(answer)


@pytest.mark.parametrize("answer", ANSWERS_ENDED_BY_CLOSING.values(), ids=ANSWERS_ENDED_BY_CLOSING)
async def test_an_answer_may_end_with_its_connection(answer: bytes) -> None:
    async with serving_bytes(answer, closes=True) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert result.ok == 3
    assert result.bytes_received == 3 * len(answer)


@pytest.mark.parametrize("answer", MALFORMED_ANSWERS.values(), ids=MALFORMED_ANSWERS)
async def test_a_malformed_answer_is_a_protocol_error(answer: bytes) -> None:
    async with serving_bytes(answer) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert (result.requests, result.ok, result.errors.protocol) == (3, 0, 3)


@pytest.mark.parametrize("answer", CUT_ANSWERS.values(), ids=CUT_ANSWERS)
async def test_a_connection_closed_before_the_answer_is_whole_is_an_error(answer: bytes) -> None:
    async with serving_bytes(answer, closes=True) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert (result.requests, result.ok, result.errors.reset) == (3, 0, 3)


async def test_an_answer_before_the_body_was_sent_counts() -> None:
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"

    async with serving_bytes(answer) as port:
        target = Target(port=port, bodies=[b"x" * 30_000_000])
        result = await load(target, ClosedLoop(connections=1, requests=2))

    assert result.statuses == {413: 2}


async def test_a_server_that_is_not_there_costs_errors_and_no_busy_loop() -> None:
    async with serving(answer_ok) as port:
        pass
    result = await load(Target(port=port), ClosedLoop(connections=2, seconds=0.3))

    assert result.requests == result.errors.connect
    assert 2 <= result.requests <= 80


async def test_a_request_without_an_answer_times_out() -> None:
    end = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        await end.wait()
        return web.Response()

    async with serving(hang) as port:
        result = await load(
            Target(port=port), ClosedLoop(connections=3, requests=6), timeout_seconds=0.1
        )
        end.set()

    assert (result.requests, result.ok, result.errors.timeout) == (6, 0, 6)
    assert 0.2 <= result.seconds < 2.0


async def test_what_is_due_while_no_connection_is_free_times_out_unsent() -> None:
    end = asyncio.Event()
    seen = 0

    async def hang(request: web.Request) -> web.Response:
        nonlocal seen
        seen += 1
        await end.wait()
        return web.Response()

    arrivals = GivenArrivals(offsets_microseconds=[0, 0, 0, 0], connections=2)
    async with serving(hang) as port:
        result = await load(Target(port=port), arrivals, timeout_seconds=0.2)
        end.set()

    assert result.errors.timeout == 4
    assert seen == 2


async def test_sixty_four_connections_keep_sixty_four_requests_in_flight() -> None:
    together = asyncio.Barrier(64)

    async def answer_in_company(request: web.Request) -> web.Response:
        await together.wait()
        return web.Response()

    async with serving(answer_in_company) as port:
        result = await load(Target(port=port), ClosedLoop(connections=64, requests=640))

    assert result.statuses == {200: 640}


async def test_connections_start_in_groups_that_fit_into_an_accept_queue() -> None:
    together = asyncio.Barrier(64)
    seen = 0
    seen_before_the_first_answer = 0

    async def answer_the_first_in_company(request: web.Request) -> web.Response:
        nonlocal seen, seen_before_the_first_answer
        seen += 1
        if seen <= 64:
            await together.wait()
            seen_before_the_first_answer = seen_before_the_first_answer or seen
        return web.Response()

    async with serving(answer_the_first_in_company) as port:
        result = await load(Target(port=port), ClosedLoop(connections=200, requests=1000))

    assert result.statuses == {200: 1000}
    assert seen_before_the_first_answer == 64


async def test_what_ends_within_the_warm_up_is_not_counted() -> None:
    seen = 0

    async def count(request: web.Request) -> web.Response:
        nonlocal seen
        seen += 1
        await asyncio.sleep(0.01)
        return web.Response()

    async with serving(count) as port:
        loop = ClosedLoop(connections=2, seconds=0.3, warm_up_seconds=0.3)
        result = await load(Target(port=port), loop)
        seen_for_seconds, seen = seen, 0
        loop = ClosedLoop(connections=2, requests=10, warm_up_seconds=0.2)
        exact = await load(Target(port=port), loop)

    assert result.seconds == pytest.approx(0.3)
    assert 0 < result.requests <= 60
    assert seen_for_seconds >= result.requests + 10
    assert exact.requests == 10
    assert seen >= 15


async def test_given_arrivals_leave_at_their_times() -> None:
    seen: list[float] = []

    async def record(request: web.Request) -> web.Response:
        seen.append(time.monotonic())
        return web.Response()

    arrivals = GivenArrivals(offsets_microseconds=range(0, 2_000_000, 2000), connections=64)
    async with serving(record) as port:
        result = await load(Target(port=port), arrivals)

    assert result.statuses == {200: 1000}
    # Medians, because a busy machine may hold up any one request, the last one included.
    rate = 750 / (statistics.median(seen[750:]) - statistics.median(seen[:250]))
    assert rate == pytest.approx(500, rel=0.05)
    assert result.rate <= 500 * 1.05


async def test_poisson_arrivals_have_their_rate_and_repeat_with_their_seed() -> None:
    def poisson(seed: int) -> PoissonArrivals:
        return PoissonArrivals(rate=500, seed=seed, seconds=1, warm_up_seconds=0.1, connections=64)

    async with serving(answer_ok) as port:
        target = Target(port=port)
        first, again, other = [await load(target, poisson(seed)) for seed in (7, 7, 8)]
        bounded = await load(target, PoissonArrivals(rate=2000, requests=100))

    assert first.requests == pytest.approx(500, rel=0.15)  # a deviation is 4.5 %
    assert first.requests == again.requests != other.requests
    assert bounded.requests == 100


async def test_latency_runs_from_the_due_time_when_the_server_holds_requests_up(
    tmp_path: Path,
) -> None:
    async def delay(request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return web.Response()

    latencies = tmp_path / "latencies"
    arrivals = GivenArrivals(offsets_microseconds=[0, 0, 50_000], connections=1)
    async with serving(delay) as port:
        result = await asyncio.to_thread(
            run_load, Target(port=port), arrivals, latencies_file=latencies
        )

    first, second, third = read_latencies(latencies)
    assert first >= 99_000
    assert second >= 199_000
    assert third >= 249_000
    assert result.late_sends == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port=80"], "--duration or --requests is missing"),
        (["--duration=1"], "--port is missing"),
        (["--port=0", "--duration=1"], "--port 0: not a whole number from 1 to 65535"),
        (["--port=80", "--duration=inf"], "--duration inf: not a number from 0.001 to 3600"),
        (["--port=80", "--duration=nan"], "--duration nan: not a number"),
        (["--port=80", "--requests=-1"], "--requests -1: not a whole number"),
        (["--port=80", "--requests=1", "--host=10.0.0.1"], "not a numeric loopback address"),
        (["--port=80", "--requests=1", "--host=localhost"], "not a numeric loopback address"),
        (["--port=80", "--requests=1", "--method=PUT"], "neither GET nor POST"),
        (["--port=80", "--requests=1", "--path=x"], "does not begin with /"),
        (["--port=80", "--requests=1", "--path=/a b"], "not printable ASCII"),
        (["--port=80", "--requests=1", "--header=X"], "not of the form NAME: VALUE"),
        (["--port=80", "--requests=1", "--header=X: a\r\nY: b"], "a control character"),
        (["--port=80", "--requests=1", "--header=content-length: 3"], "sets this header itself"),
        (["--port=80", "--requests=1", "--body=/no/such"], "No such file"),
        (["--port=80", "--requests=1", "--seed=1"], "--seed is for --rate"),
        (["--port=80", "--rate=1e6", "--duration=3600"], "arrivals in all"),
        (["--port=80", "--requests=1", "surplus"], "surplus: not an option"),
        (["--port=80", "--wrong"], "unrecognized option"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_sent(arguments: list[str], message: str) -> None:
    program = build_load_generator(environ)
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert message in ended.stderr


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("bodies", b"", "no body in it"),
        ("bodies", b"\x05\x00\x00\x00abc", "the body at byte 0 is cut short"),
        ("bodies", b"\x01\x00\x00\x00a\x00", "1 bytes too many at the end"),
        ("arrivals", b"", "no arrival in it"),
        ("arrivals", b"5\n4\n", "number 2 is earlier than the one before"),
        ("arrivals", b"5\nx\n", "number 2 is not a whole number"),
        ("arrivals", b"-5\n", "number 1 is not a whole number"),
    ],
)
def test_a_wrong_file_is_named_and_nothing_is_sent(
    option: str, content: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    bound = [] if option == "arrivals" else ["--requests=1"]
    ended = subprocess.run(
        [build_load_generator(environ), "--port=80", f"--{option}={file}", *bound],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert message in ended.stderr


def test_the_reason_of_a_refusal_reaches_the_caller() -> None:
    with pytest.raises(LoadGeneratorError, match="not a numeric loopback address"):
        run_load(Target(host="192.0.2.1", port=80), ClosedLoop(connections=1, requests=1))


def test_the_program_is_compiled_once(tmp_path: Path) -> None:
    environment = {**environ, "XDG_CACHE_HOME": str(tmp_path)}

    program = build_load_generator(environment)
    compiled = program.stat()

    assert build_load_generator(environment).stat() == compiled
    assert list((tmp_path / "batchedmodel").iterdir()) == [program]


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}

    with pytest.raises(LoadGeneratorError, match="needs a C compiler, and none of cc, gcc, clang"):
        build_load_generator(environment)
