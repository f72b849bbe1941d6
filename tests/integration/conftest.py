"""Foreign servers for tests of what stands in front of them."""

from collections.abc import AsyncIterator

import pytest

from support.behind import Behind
from support.fetching import FILES
from support.model_server_hub import ServedHub, hub
from support.row_server import RowServer


@pytest.fixture
async def server() -> AsyncIterator[RowServer]:
    """Speaks all protocols; nothing is in front of it yet."""
    async with RowServer() as running:
        yield running


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
