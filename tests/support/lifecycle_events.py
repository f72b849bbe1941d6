"""What those hear who follow the life of a model."""

import asyncio
from collections.abc import AsyncIterator

from batchedmodel_contract.link.model_frames import State
from batchedmodel_model_server.lifecycle.versions import Lifecycle, Topic


async def followed(lifecycle: Lifecycle) -> AsyncIterator[State]:
    """The present state, then every change."""
    changes: asyncio.Queue[State] = asyncio.Queue()
    changes.put_nowait(lifecycle.event)

    def changed(topic: Topic) -> None:
        if topic is Topic.STATE:
            changes.put_nowait(lifecycle.event)

    lifecycle.follow(changed)
    try:
        while True:
            yield await changes.get()
    finally:
        lifecycle.leave(changed)


async def changed(lifecycle: Lifecycle, awaited: Topic) -> None:
    """Return once this has changed."""
    happened = asyncio.Event()

    def heard(topic: Topic) -> None:
        if topic is awaited:
            happened.set()

    lifecycle.follow(heard)
    await happened.wait()
    lifecycle.leave(heard)
