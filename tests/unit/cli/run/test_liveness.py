"""When a process counts as dead, and what one probe makes of an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from batchedmodel_cli.run import liveness
from batchedmodel_cli.run.liveness import (
    FAILURES_IN_A_ROW,
    PERIOD_SECONDS,
    STOP_WITHIN_SECONDS,
    Address,
    dead,
    trouble_of,
)
from support.ports import unused_port
from support.rendered import containers_of

WELL = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nlive\n"
DEAD = "HTTP/1.1 503 Service Unavailable\r\n\r\nit answers nothing\n"


@asynccontextmanager
async def answering(text: str) -> AsyncIterator[Address]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        assert asked.startswith(b"GET /live HTTP/1.1\r\n")
        writer.write(text.encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield "127.0.0.1", server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (WELL, None),
        (DEAD, "it answers nothing"),
        ("SSH-2.0\r\n", "an answer that is no HTTP"),
        ("", "an answer that is no HTTP"),
    ],
)
async def test_a_probe_says_what_is_wrong(answer: str, trouble: str | None) -> None:
    async with answering(answer) as address:
        assert await trouble_of(address, "/live") == trouble


async def test_a_port_at_which_nothing_listens_is_trouble() -> None:
    assert await trouble_of(("127.0.0.1", unused_port()), "/live") is not None


@pytest.mark.looptime
async def test_only_failures_in_a_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["down"] * (FAILURES_IN_A_ROW - 1)
    said = iter([*few, None, *few, "down for good"])

    async def trouble(address: Address, path: str) -> str | None:
        return next(said)

    monkeypatch.setattr(liveness, "trouble_of", trouble)
    addresses = iter([None, *[("127.0.0.1", 1)] * 100])
    began = asyncio.get_running_loop().time()
    assert await dead("/live", lambda: next(addresses)) == "down for good"
    probes = 1 + 2 * FAILURES_IN_A_ROW
    assert asyncio.get_running_loop().time() - began == PERIOD_SECONDS * probes


def test_a_run_is_as_patient_as_a_pod() -> None:
    for container in containers_of({"model": {"handler": "simulated"}}):
        probe = container["livenessProbe"]
        assert probe["periodSeconds"] == PERIOD_SECONDS
        assert probe["failureThreshold"] == FAILURES_IN_A_ROW
    assert probe["terminationGracePeriodSeconds"] == STOP_WITHIN_SECONDS
