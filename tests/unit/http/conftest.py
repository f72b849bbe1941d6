"""What several tests of connections start."""

from collections.abc import AsyncIterator

import pytest

from support.door_world import DoorWorld, turns


@pytest.fixture
async def world() -> AsyncIterator[DoorWorld]:
    """A connection whose caller has left behind the test."""
    made = DoorWorld()
    yield made
    made.wire.leaves()
    await turns()  # by which all that was done for it has ended
