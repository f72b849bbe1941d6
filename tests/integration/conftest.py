"""Upstream servers for tests of what stands in front of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from support.behind import Behind
from support.fetching import FILES
from support.model_server_hub import ServedHub, hub
from support.row_server import Fronts, RowServer, fronting


@pytest.fixture
async def server() -> AsyncIterator[RowServer]:
    """Speaks all protocols; nothing is in front of it yet."""
    async with RowServer() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def row_server() -> AsyncIterator[RowServer]:
    """As `server`, one for the tests of a module, which have it begin anew."""
    async with RowServer() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fronts(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Fronts]:
    """Those that the module names in `FRONTS`, each with how its sidecar is started."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                fronting(tmp_path_factory.mktemp("front"), **start)
            )
            for name, start in request.module.FRONTS.items()
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stands_behind() -> AsyncIterator[Behind]:
    """As `behind`, one for the tests of a module, which have it forget."""
    async with Behind().serving() as server:
        yield server


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    """Answers what a test wants it to; nothing is in front of it yet."""
    async with Behind().serving() as server:
        yield server


@pytest.fixture
async def served() -> AsyncIterator[ServedHub]:
    """A hub that has one small model."""
    async with hub("us/small", FILES) as running:
        yield running
