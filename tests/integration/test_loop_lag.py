"""How long the sidecar's loop is held up while bodies of thirteen mebibytes come and go.

The loop is late for whoever comes while it does something at a stretch, by what is left of that. A
stretch is measured by the time that it takes of the CPU, and against the time that reading the body
takes of it in the same run: neither depends on what else the machine does meanwhile.
"""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain, running_chain
from support.large_bodies import LARGEST, MEBIBYTE, numbers, posting, v2_body
from support.row_server import RowServer, in_front

LATE: Final = 1 / 20
"""Of the time that reading the body takes: 5 ms, where it takes a tenth of a second."""
LATE_SHARE: Final = 0.01
"""At so many moments at most the loop may be later than that: the 99th percentile."""
SECONDS: Final = 3.0
"""A look is so long, and until two more bodies were answered."""
_NIGHTLY: Final = pytest.mark.nightly
WATCHED: Final[dict[str, Any]] = {"sidecar_module": "support.measured_sidecar"}
OURS: Final = "our own"
BINARY: Final = "v2 in binary"
ROWS: Final = 64


@contextlib.asynccontextmanager
async def chain_of(kind: str, folder: Path) -> AsyncIterator[Chain]:
    """A watched sidecar in front of our server, or of one that speaks a protocol."""
    if kind == OURS:
        parameters = {"fixedSeconds": "0.002", "rowSeconds": "0"}
        async with running_chain(
            folder, handler="simulated", parameters=parameters, **WATCHED
        ) as chain:
            yield chain
        return
    protocol = ServerProtocol.V2 if kind == BINARY else ServerProtocol(kind)
    async with (
        RowServer(binary=kind == BINARY) as server,
        in_front(server, folder, protocol, **WATCHED) as chain,
    ):
        yield chain


def question(kind: str) -> tuple[str, bytes]:
    """A path and a body for it, whose answer is large as well."""
    rows = [numbers(LARGEST // ROWS, start=10**11 * (1 + row % 9)) for row in range(ROWS)]
    match kind:
        case ServerProtocol.V1:
            return "/v1/models/m:predict", json.dumps({"instances": rows}).encode()
        case ServerProtocol.OPENAI:
            texts = [" ".join(map(str, row)) for row in rows]
            return "/v1/embeddings", json.dumps({"model": "m", "input": texts}).encode()
        case _:
            return "/v2/models/m/infer", v2_body(*rows)


def reading_seconds(body: bytes) -> float:
    """CPU time of reading it, the least of three."""
    taken = []
    for _ in range(3):
        before = time.thread_time()
        json.loads(body)
        taken.append(time.thread_time() - before)
    return min(taken)


async def assert_hardly_ever_late(chain: Chain, outcome: str) -> None:
    """While bodies are posted, which come to this outcome: the median of three looks."""
    shares = [await late_share_seen(chain, 2 * look, outcome) for look in (1, 2, 3)]
    assert sorted(shares)[1] <= LATE_SHARE, shares


async def late_share_seen(chain: Chain, answers: int, outcome: str) -> float:
    """Over a while, and until so many bodies in all were answered."""
    # The same size for each protocol, and as much to read.
    reading = reading_seconds(v2_body(numbers(LARGEST)))
    await stretches_of(chain)
    began = time.monotonic()
    await asyncio.sleep(SECONDS)
    settled = "batchedmodel_requests_settled_total"
    await chain.until(settled, lambda count: count >= answers, outcome=outcome)
    return late_share(await stretches_of(chain), LATE * reading, time.monotonic() - began)


async def stretches_of(chain: Chain) -> list[float]:
    """For how long the loop was busy at a stretch, in seconds of CPU time, since last asked."""
    seen = len(chain.sidecar.lines)
    chain.sidecar.send(signal.SIGUSR1)
    told = await chain.sidecar.wait_for("delays: (.*)", after=seen)
    stretches: list[float] = json.loads(told[1])
    return stretches


def late_share(stretches: list[float], late: float, seconds: float) -> float:
    """The share of moments at which whoever comes waits longer than `late` for the loop."""
    return sum(max(0.0, one - late) for one in stretches) / seconds


@pytest.mark.parametrize(
    "kind",
    [
        OURS,
        ServerProtocol.V1,
        *(
            pytest.param(kind, marks=_NIGHTLY)
            for kind in (ServerProtocol.V2, ServerProtocol.OPENAI, BINARY)
        ),
    ],
)
async def test_the_loop_is_hardly_ever_late_under_bodies_of_thirteen_mebibytes(
    tmp_path: Path, kind: str
) -> None:
    path, body = question(kind)
    assert len(body) > 13 * MEBIBYTE
    (tmp_path / "body").write_bytes(body)
    async with chain_of(kind, tmp_path) as chain, posting(chain, path, tmp_path / "body"):
        await assert_hardly_ever_late(chain, "completed")


@_NIGHTLY
@pytest.mark.parametrize(("status", "outcome"), [(200, "completed"), (422, "failed")])
async def test_nor_is_it_by_what_a_server_says_beside_the_rows_or_in_place_of_them(
    tmp_path: Path, status: int, outcome: str
) -> None:
    words = "w" * 13 * MEBIBYTE
    (tmp_path / "body").write_bytes(b'{"instances": [1]}')
    async with (
        RowServer(seconds=0.2) as server,
        in_front(server, tmp_path, ServerProtocol.V1, **WATCHED) as chain,
    ):
        if status == 200:
            server.beside = lambda rows: {"words": words}
        else:
            server.failure = (status, {}, words)
        async with posting(chain, "/v1/models/m:predict", tmp_path / "body", status):
            await assert_hardly_ever_late(chain, outcome)


def test_a_loop_that_reads_such_a_body_itself_would_be_found_out() -> None:
    """One such stretch in the whole of the measured time is above the bar already."""
    reading = 0.1
    assert late_share([reading], LATE * reading, SECONDS) > LATE_SHARE
