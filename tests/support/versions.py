"""A model's versions in one process, without HTTP in front."""

import asyncio
from collections.abc import Callable

from batchedmodel_model_server.lifecycle.service import ModelService
from support.model_server_handlers import arrays_of, batch_of

MakeService = Callable[..., ModelService]
"""Makes the service of a handler class, by default `Times`, over the folder `model`."""


async def ask(service: ModelService, version: str | None = None) -> int:
    """What a 1 is answered with, by the version that serves unless one is named."""
    with service.admitted(version) as runner:
        reply = await runner.run(batch_of(x=[[1]]))
    assert reply.statuses == (200,)
    return int(arrays_of(reply.outputs[0])[0][0])


def states(service: ModelService) -> list[tuple[str | None, str]]:
    """Each version and its state, in the order in which they came."""
    return [(row.get("version"), row["state"]) for row in service.index()]


async def until_gone(service: ModelService, version: str) -> None:
    """Wait for the end of a version."""
    await asyncio.wait_for(service.of(version).gone.wait(), 180)
