"""A server that answers no batch: nothing is sent there, and whoever asks is told not to come."""

import asyncio
import json
from pathlib import Path
from typing import Final

from batchedmodel_contract import sidecar_api
from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.spec import PolicyName, ServerProtocol
from support.chain import Chain
from support.row_server import RowServer, in_front

SIZE: Final = 4
FULL: Final = BatchSettings(
    policy=PolicyName.WINDOW, max_wait_seconds=10.0, max_batch_size=SIZE, max_concurrent_batches=1
)
"""Nothing but full batches, so that their number is that of the calls."""
REASON: Final = "the model answered none of the last batches; it is tried again soon"
Told = tuple[int, str]


async def called(chain: Chain) -> Told:
    """One call of one row."""
    url = chain.url("/v1/models/m:predict")
    async with chain.session.post(url, json={"instances": [1]}) as response:
        return response.status, await response.text()


async def batch(chain: Chain) -> set[int]:
    """What the callers of one full batch are told."""
    return {status for status, _ in await asyncio.gather(*(called(chain) for _ in range(SIZE)))}


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
