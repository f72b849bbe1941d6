"""The compiled load generator against real servers: counts, time-outs, arrival times."""

import asyncio
import statistics
import time
from pathlib import Path

import pytest
from aiohttp import web

from load_generator import (
    ClosedLoop,
    GivenArrivals,
    PoissonArrivals,
    Target,
    read_latencies,
    run_load,
)
from support.load_target import answer_ok, load, serving


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


@pytest.mark.alone
async def test_given_arrivals_leave_at_their_times() -> None:
    seen: list[float] = []

    async def record(request: web.Request) -> web.Response:
        seen.append(time.monotonic())
        return web.Response()

    arrivals = GivenArrivals(offsets_microseconds=range(0, 2_000_000, 2000), connections=64)
    async with serving(record) as port:
        result = await load(Target(port=port), arrivals)

    assert result.statuses == {200: 1000}
    # Medians, because a machine may hold up any one request, the last one included.
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
