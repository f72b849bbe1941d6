"""A server that answers no batch: nothing is sent there, and whoever asks is told not to come."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import aiohttp

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes import sidecar_api
from support.chain import Chain
from support.row_server import RowServer, in_front

SIZE: Final = 4
FULL: Final = BatchSettings(
    policy=PolicyName.WINDOW, max_wait_seconds=10.0, max_batch_size=SIZE, max_concurrent_batches=1
)
"""Nothing but full batches, so that their number is that of the calls."""
REASON: Final = "the model answered none of the last batches; it is tried again soon"
Told = tuple[int, str]


async def called(chain: Chain, caller: int = 0) -> Told:
    """One call of one row, from an address of the caller's own."""
    connector = aiohttp.TCPConnector(local_addr=(f"127.0.1.{caller + 1}", 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(chain.url("/v1/models/m:predict"), json={"instances": [1]}) as response,
    ):
        return response.status, await response.text()


async def batch(chain: Chain) -> set[int]:
    """What the callers of one full batch are told."""
    told = await asyncio.gather(*(called(chain, caller) for caller in range(SIZE)))
    return {status for status, _ in told}


async def probed(chain: Chain) -> list[Told]:
    """What the kubelet is told, and v2 clients that ask for the server and for the model."""

    async def asked(path: str) -> Told:
        async with chain.session.get(chain.url(path)) as response:
            return response.status, await response.text()

    kubelet = chain.admin(sidecar_api.READY)
    return [*await asyncio.gather(kubelet, asked("/v2/health/ready"), asked("/v2/models/m/ready"))]


async def test_after_five_broken_batches_readiness_ends_and_comes_back_with_the_server(
    tmp_path: Path, server: RowServer
) -> None:
    ready = [(200, "ready\n"), (200, '{"ready":true}'), (200, '{"name":"m","ready":true}')]
    closed = [(503, f"{REASON}\n"), (503, '{"ready":false}'), (503, '{"name":"m","ready":false}')]
    async with in_front(server, tmp_path, ServerProtocol.V1, FULL) as chain:
        server.failure = (500, {}, "broken")
        for _ in range(5):
            assert await probed(chain) == ready, "a few failures change nothing"
            assert await batch(chain) == {500}
        asked = len(server.rows)
        probes, (status, text), opened = await asyncio.gather(
            probed(chain), called(chain), chain.metric("batchedmodel_circuit_open")
        )
        assert (probes, status, json.loads(text), opened) == (closed, 503, {"error": REASON}, 1)
        assert len(server.rows) == asked, "nothing is sent while it rests"

        # Somebody must come to be tried, and when that fails as well the server rests for longer.
        await chain.until("batchedmodel_circuit_open", lambda value: value == 0)
        assert await probed(chain) == ready
        assert await batch(chain) == {500}
        assert await probed(chain) == closed

        server.failure = None
        await chain.until("batchedmodel_circuit_open", lambda value: value == 0)
        assert await batch(chain) == {200}
        assert await probed(chain) == ready
        # One failure of a server that is trusted again is but one.
        server.failure = (500, {}, "broken")
        assert await batch(chain) == {500}
        assert await probed(chain) == ready


async def test_what_one_caller_meets_takes_the_server_from_nobody(
    tmp_path: Path, server: RowServer
) -> None:
    """Sixty answers that make no sense, and refusals of a gateway, with no answer between.

    The server is well: what it answered before it would answer now.
    """
    alone = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=SIZE)
    odd = 777_777

    def spoil(outputs: list[dict[str, Any]]) -> None:
        if str(odd) in str(outputs[0]["data"]):
            outputs[0]["shape"] = "none"

    async with in_front(server, tmp_path, ServerProtocol.V2, alone) as chain:

        async def answered(value: int = odd) -> int:
            tensor = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [value]}
            url = chain.url(chain.infer_path)
            async with chain.session.post(url, json={"inputs": [tensor]}) as response:
                await response.read()
                return response.status

        server.outputs = spoil
        assert {await answered() for _ in range(60)} == {502}
        for status in (501, 502, 504):
            server.failure_of = (str(odd).encode(), (status, {}, "not here"))
            assert {await answered() for _ in range(5)} == {status}
        assert [status for status, _ in await probed(chain)] == [200, 200, 200]
        assert await answered(1) == 200


async def test_what_one_caller_meets_is_told_to_nobody_in_its_batch(
    tmp_path: Path, server: RowServer
) -> None:
    """One caller's rows are answered 404 or 503, in one batch with those of another address."""
    async with in_front(server, tmp_path, ServerProtocol.V1) as chain:
        url = chain.url("/v1/models/m:predict")
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.66", 0))
        async with aiohttp.ClientSession(connector=connector) as other:

            async def answered(session: aiohttp.ClientSession, row: str) -> int:
                async with session.post(url, json={"instances": [row]}) as response:
                    await response.read()
                    return response.status

            for status in (404, 503):
                server.failure_of = (b"odd", (status, {"Retry-After": "5"}, "not this"))
                server.rows.clear()
                odd = asyncio.create_task(answered(other, "odd"))
                good = [answered(chain.session, f"good {number}") for number in range(4)]
                async with asyncio.timeout(3.0):  # the rest is longer
                    assert await asyncio.gather(*good) == [200] * 4
                assert server.rows[0] == 5, "they shared a batch"
                if status == 404:
                    assert await odd == 404
                odd.cancel()


V2_CALL: Final[dict[str, Any]] = {
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]
}


async def test_behind_one_address_an_ill_server_opens_the_circuit_after_as_many_failures(
    tmp_path: Path, server: RowServer
) -> None:
    alone = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=SIZE)
    async with in_front(server, tmp_path, ServerProtocol.V2, alone) as chain:

        async def answered() -> int:
            async with chain.session.post(chain.url(chain.infer_path), json=V2_CALL) as response:
                await response.read()
                return response.status

        assert await answered() == 200
        server.rows.clear()
        server.failure = (502, {}, "broken")
        assert [await answered() for _ in range(5)] == [502] * 5
        await chain.until("batchedmodel_circuit_open", lambda value: value == 1)
        assert len(server.rows) == 6, "a probe of the sidecar's own beside the five"
        server.failure = None
        await chain.until("batchedmodel_circuit_open", lambda value: value == 0)
        assert await answered() == 200
        assert [status for status, _ in await probed(chain)] == [200, 200, 200]


async def test_a_429_rests_the_requests_that_met_it_and_no_others(
    tmp_path: Path, server: RowServer
) -> None:
    alone = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=SIZE)
    limited = {**V2_CALL, "parameters": {"tenant": "limited"}}
    async with in_front(server, tmp_path, ServerProtocol.V2, alone) as chain:

        async def answered(call: dict[str, Any]) -> int:
            async with chain.session.post(chain.url(chain.infer_path), json=call) as response:
                await response.read()
                return response.status

        assert await answered(V2_CALL) == 200
        server.failure_of = (b"limited", (429, {"Retry-After": "5"}, "over quota"))
        server.bodies.clear()
        resting = asyncio.create_task(answered(limited))
        while not server.bodies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(5):
            async with asyncio.timeout(3.0):  # the rest is longer
                assert await answered(V2_CALL) == 200
        assert not resting.done()
        assert [status for status, _ in await probed(chain)] == [200, 200, 200]
        assert sum(b"limited" in body for body in server.bodies) == 1
        server.failure_of = None
        assert await resting == 200
