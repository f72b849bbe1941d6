"""The sidecar's end of the link, followed, in front of a server's end of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from batchedmodel_contract.inference.batch import (
    BatchRequest,
    Ragged,
)
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel
from support.link_server import SECONDS, LinkPeer, LinkServer

BUDGET = 64 << 20


def batch_of(rows: int = 1, version: str | None = "1") -> BatchRequest:
    """A batch for the model of `link_server`."""
    x = Ragged("x", Datatype.INT64, ((1,),) * rows, (bytes(8 * rows),))
    return BatchRequest(inputs=(x,), version=version)


class Listener:
    """Keeps what the link tells."""

    def __init__(self) -> None:
        self.models: asyncio.Queue[ReadyModel] = asyncio.Queue()
        self.reasons: asyncio.Queue[str] = asyncio.Queue()
        self.profiles: asyncio.Queue[Profile] = asyncio.Queue()
        self.caps: list[MemoryCap] = []
        self.losses = 0

    def model_ready(self, model: ReadyModel) -> None:
        """See `LinkListener`."""
        self.models.put_nowait(model)

    def model_lost(self, reason: str) -> None:
        """See `LinkListener`."""
        self.losses += 1
        self.reasons.put_nowait(reason)

    def profile_measured(self, model: ReadyModel) -> None:
        """See `LinkListener`."""
        assert model.profile is not None
        self.profiles.put_nowait(model.profile)

    def memory_bound(self, cap: MemoryCap) -> None:
        """See `LinkListener`."""
        self.caps.append(cap)

    async def ready(self) -> ReadyModel:
        """The next model."""
        async with asyncio.timeout(SECONDS):
            return await self.models.get()

    async def lost(self, reason: str) -> None:
        """Return once there is no model for this reason."""
        async with asyncio.timeout(SECONDS):
            while await self.reasons.get() != reason:
                pass


class Followed:
    """A link that is followed."""

    def __init__(self, path: Path) -> None:
        self.listener = Listener()
        self.adapters = ServedAdapters("m")
        self.budget = ByteBudget(BUDGET)
        self.regions = SharedRegions(BUDGET)
        self.link = NativeLink(str(path), self.listener, self.regions, self.adapters)


@asynccontextmanager
async def followed(path: Path) -> AsyncIterator[Followed]:
    """A link to whatever server is at this path."""
    here = Followed(path)
    following = asyncio.create_task(here.link.follow())
    try:
        yield here
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await here.link.close()


@asynccontextmanager
async def linked(folder: Path) -> AsyncIterator[tuple[Followed, LinkPeer]]:
    """A link and the server's end of its connection; the model is ready."""
    path = folder / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        peer = await server.peer()
        peer.ready()
        await here.listener.ready()
        yield here, peer
