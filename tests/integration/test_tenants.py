"""Tenants of real processes: named by a trusted proxy, or by the address of a connection."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from support.chain import Chain, running_chain

pytestmark = pytest.mark.asyncio(loop_scope="module")

BATCH = 0.1
"""Seconds of a batch of four rows."""
SETTINGS = BatchSettings(max_batch_size=4, max_queue_size=400, request_timeout_seconds=60.0)
PROXIED = replace(
    SETTINGS,
    tenant_header="x-tenant",
    tenant_weights=(("flood", 1.0), ("interactive", 1.0)),
    trusted_proxies=("127.0.0.1/32",),
)
BODY = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}
FLOOD, MINE = {"x-tenant": "flood"}, {"x-tenant": "interactive"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    async with running_chain(
        tmp_path_factory.mktemp("tenants"),
        handler="simulated",
        parameters={"fixedSeconds": str(BATCH), "rowSeconds": "0"},
        settings=SETTINGS,
    ) as running:
        await running.ready()
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def elsewhere() -> AsyncIterator[aiohttp.ClientSession]:
    """Connections from another address of this machine."""
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0), limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def answered(chain: Chain, session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
    async with session.post(chain.url(chain.infer_path), json=BODY, headers=headers) as response:
        assert response.status == 200, await response.text()


async def overtaken(chain: Chain, session: aiohttp.ClientSession, headers: dict[str, str]) -> float:
    """The share of a flood that is not answered when one is who came behind it."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as theirs:
        flood = [asyncio.create_task(answered(chain, theirs, FLOOD)) for _ in range(80)]
        await chain.until("batchedmodel_queue_length", lambda rows: rows > 60)
        await answered(chain, session, headers)
        ahead = sum(not task.done() for task in flood)
        await asyncio.gather(*flood)
    return ahead / len(flood)


async def test_a_trusted_proxys_header_tells_its_callers_apart(chain: Chain) -> None:
    await chain.goes_by(PROXIED)
    assert await overtaken(chain, chain.session, MINE) > 0.4
    served = "batchedmodel_tenant_served_items_total"
    assert await chain.metric(served, tenant="interactive") == 1
    assert await chain.metric(served, tenant="flood") == 80
    await chain.goes_by(SETTINGS)
    assert await overtaken(chain, chain.session, MINE) < 0.1
    assert await chain.metric(served, tenant="127.0.0.1") >= 81


async def test_an_address_has_a_share_and_no_header_buys_it_another(
    chain: Chain, elsewhere: aiohttp.ClientSession
) -> None:
    await chain.goes_by(replace(PROXIED, trusted_proxies=("10.0.0.0/8",)))
    assert await overtaken(chain, elsewhere, MINE) > 0.4
    assert await overtaken(chain, chain.session, MINE) < 0.1


async def test_large_bodies_of_one_address_do_not_hold_up_those_of_another(
    chain: Chain, elsewhere: aiohttp.ClientSession
) -> None:
    await chain.goes_by(SETTINGS)

    async def ask(session: aiohttp.ClientSession, numbers: int) -> None:
        body = json.dumps(BODY | {"parameters": {"ignored": list(range(numbers))}}).encode()
        async with session.post(chain.url(chain.infer_path), data=io.BytesIO(body)) as response:
            assert response.status in (200, 400), await response.text()

    flood = [asyncio.create_task(ask(chain.session, 500_000)) for _ in range(12)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    await ask(elsewhere, 20_000)
    waiting = sum(not task.done() for task in flood)
    await asyncio.gather(*flood)
    assert waiting >= 4
