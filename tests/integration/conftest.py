"""Foreign servers for tests of what stands in front of them."""

from collections.abc import AsyncIterator

import pytest

from support.behind import Behind
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
