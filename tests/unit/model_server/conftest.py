"""What several tests of the model server start."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from batchedmodel_model_server.compute import ComputeThread


@pytest_asyncio.fixture
async def compute() -> AsyncIterator[ComputeThread]:
    """A thread that runs what it is handed, and has ended behind the test."""
    thread = ComputeThread(asyncio.get_running_loop())
    thread.start()
    yield thread
    thread.finish()
    thread.join(5)
    assert not thread.alive
