"""What the kubelet and Prometheus are told, over a real socket."""

import asyncio
import json
import socket
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchedmodel_http.ports.listener import Listener
from batchedmodel_operator.probes import Vitals, health, probes

WELL = Vitals(
    leads=True,
    longest_reconcile_seconds=0.25,
    keys=3,
    reconciles={"succeeded": 7, "failed": 1, "overtaken": 0},
)


async def _opened(vitals: Vitals) -> Listener:
    server = probes(0, lambda: vitals)
    await server.use(None)
    return server


async def _ask(port: int, request: bytes, address: str = "127.0.0.1") -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.partition(b"\r\n")[0], body


async def test_a_probe_is_answered_and_what_else_is_asked_is_refused() -> None:
    server = await _opened(WELL)
    port = server.port
    status, body = await _ask(
        port, b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )
    assert status == b"HTTP/1.1 200 OK"
    assert json.loads(body) == {"leads": True, "longest_reconcile_seconds": 0.2}
    for request, expected in (
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"404"),
        (b"POST /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
    ):
        status, _ = await _ask(port, request)
        assert status.split()[1] == expected
    assert (await _ask(port, b"x" * 100_000))[0] == b"", "it is cut off"
    await server.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_kubelet_asks_by_either_address_family(address: str) -> None:
    server = await _opened(WELL)
    port = server.port
    status, _ = await _ask(
        port, b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", address
    )
    assert status == b"HTTP/1.1 200 OK"
    await server.close()


async def test_a_crowd_holds_few_connections_and_a_probe_gets_in() -> None:
    """Four hundred that said nothing kept the operator from opening a connection of its own."""
    server = await _opened(WELL)
    port = server.port
    crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    ended = await asyncio.gather(*(_ends_within(reader, 1.0) for reader, _ in crowd))
    assert ended.count(False) == 32
    status, _ = await _ask(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert status == b"HTTP/1.1 200 OK"
    assert sum(not reader.at_eof() and not reader.exception() for reader, _ in crowd) == 31
    for _, writer in crowd:
        writer.transport.abort()
    await server.close()


async def test_a_crowd_of_one_address_ends_no_connection_of_another() -> None:
    """A neighbour that connects by the ten thousand a second had the kubelet's connection ended."""
    server = await _opened(WELL)
    port = server.port

    async def crowd() -> list[asyncio.StreamWriter]:
        theirs = ("127.0.0.9", 0)
        opened = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=theirs) for _ in range(40)
        ]
        return [writer for _, writer in opened]

    writers = await crowd()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writers += await crowd()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
    for one in (*writers, writer):
        one.transport.abort()
    await server.close()


async def _ends_within(reader: asyncio.StreamReader, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), seconds) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("leads", [True, False])
async def test_the_metrics_are_what_prometheus_reads(leads: bool) -> None:
    server = await _opened(replace(WELL, leads=leads))
    port = server.port
    _, body = await _ask(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    families = {one.name: one for one in text_string_to_metric_families(body.decode())}
    prefix = "batchedmodel_operator"
    assert families[f"{prefix}_leader"].samples[0].value == leads
    assert families[f"{prefix}_keys"].samples[0].value == 3
    looks = {one.labels["result"]: one.value for one in families[f"{prefix}_reconcile"].samples}
    assert looks == WELL.reconciles
    await server.close()


@pytest.mark.parametrize("leads", [True, False])
def test_only_a_reconcile_that_never_ends_is_ill(leads: bool) -> None:
    assert health(replace(WELL, leads=leads))[0] == 200
    assert health(replace(WELL, leads=leads, longest_reconcile_seconds=181))[0] == 503
