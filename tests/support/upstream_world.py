"""A batcher, the link behind it, and a server of somebody else's that reacts as it is told."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.client import Client, Deaf
from batchedmodel_sidecar.backends.upstream.link import UpstreamLink
from batchedmodel_sidecar.backends.upstream.protocol import BackendRequest, NotReady, Response
from batchedmodel_sidecar.codec.codec import Codec, body_helper
from batchedmodel_sidecar.errors import Busy, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.telemetry.ledger import Durations, RecentArrivals
from support.sidecar_world import LoopTimer, watched_batcher

SECONDS = 0.01
"""Of each request."""
SETTINGS = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.05, max_batch_size=32)
Rows = Sequence[str]
Reaction = Callable[[Rows], Response]
"""What becomes of a request with these rows; raises `Unserved`."""


def said(status: int, document: object, **headers: str) -> Response:
    return Response(
        status=status,
        headers=tuple(headers.items()),
        content_type="application/json",
        header_length=None,
        body=json.dumps(document).encode(),
    )


def well(rows: Rows) -> Response:
    return said(200, {"predictions": list(rows)})


class Scripted(Client):
    """A server that reacts as it is told, without a network."""

    def __init__(self) -> None:
        self.reaction: Reaction = well
        self.sent: list[Rows] = []
        self.running = 0
        self.most_running = 0
        """Requests that it had at the same time."""
        self.there = True
        self.silent = False
        """Whether it answers no question."""
        self.seconds: dict[str, float] = {}
        """Of requests with such a row."""
        self.asked: list[str] = []
        self.cut_off = 0
        """Requests that were given up before their answer."""

    async def ask(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if not self.there:
            raise NotReady("the model cannot be reached")
        if self.silent:
            await asyncio.sleep(3600.0)
        return 200, b'{"ready": true}'

    async def post(self, posting: BackendRequest, seconds: float) -> Response:
        rows = json.loads(b"".join(posting.parts))["instances"]
        self.sent.append(rows)
        if not self.there:
            raise Busy("the model cannot be reached")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(max(self.seconds.get(row, SECONDS) for row in rows))
        except TimeoutError:
            self.cut_off += 1
            raise Deaf from None
        finally:
            self.running -= 1
        return self.reaction(rows)

    async def away(self, seconds: float) -> None:
        """It is not there for so long."""
        self.there = False
        await asyncio.sleep(seconds)
        self.there = True

    async def close(self) -> None:
        """Nothing was opened."""


@dataclass
class UpstreamWorld:
    """A batcher, the link, and the server behind; a row is a letter."""

    settings: BatchSettings = SETTINGS
    server: Scripted = field(default_factory=Scripted)
    heard: list[str] = field(default_factory=list)
    """What was said of the server's comings and goings, in short."""
    came: int = 0
    """Callers so far."""

    def __post_init__(self) -> None:
        self.protocol = Upstream(ServerProtocol.V1, "m")
        self.link = UpstreamLink(
            client=self.server,
            protocol=self.protocol.protocol,
            deal=Codec(body_helper(), most_rows=lambda share: self.settings.max_queue_size).dealt,
            listener=self,
            idempotent=True,
            workers=lambda: self.settings.max_concurrent_batches,
        )
        self.batcher, _ = watched_batcher(
            self.settings,
            infer=self.link.infer,
            clock=now,
            timer=LoopTimer,
            durations=Durations(),
            recorder=RecentArrivals(now()),
        )

    def model_ready(self, model: ReadyModel) -> None:
        self.heard.append("ready")
        self.batcher.attach(model)

    def model_lost(self, reason: str) -> None:
        if self.heard[-1] != "lost":
            self.heard.append("lost")
        self.batcher.detach()

    def profile_measured(self, model: ReadyModel) -> None:
        raise AssertionError("nothing was measured")

    def memory_bound(self, cap: MemoryCap) -> None:
        self.batcher.bound(cap)

    async def call(self, rows: Sequence[str], caller: str = "") -> str:
        """What the server said of the rows of one call."""
        model = self.link.status.model
        assert model is not None
        adapter = self.protocol.public_protocol("/v1/models/m:predict", "", {})
        parsed = await adapter.parse(
            json.dumps({"instances": list(rows)}).encode(), None, model, 4096
        )
        answer = await self.batcher.offer(parsed.call, share=Share(caller))
        return "".join(json.loads(bytes(row[0].data)) for row in answer.rows)

    async def calls(self, rows: str) -> dict[str, str | Unserved]:
        """What became of calls of a row each, sent at once by a caller of its own each."""
        calls = (self.call(row, caller=f"{row}{self.came + at}") for at, row in enumerate(rows))
        self.came += len(rows)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, str | Unserved) for one in found), found
        return dict(zip(rows, found, strict=True))  # type: ignore[arg-type]  # just seen


def now() -> float:
    return asyncio.get_running_loop().time()


async def in_front(
    test: Callable[[UpstreamWorld], Awaitable[None]], settings: BatchSettings = SETTINGS
) -> None:
    """Let the test have a world whose server is ready; needs a loop of virtual time."""
    world = UpstreamWorld(settings=settings)
    following = asyncio.create_task(world.link.follow())
    await asyncio.sleep(0.5)
    await test(world)
    following.cancel()
    await world.batcher.close()


def once(fault: Unserved | Response, on: str, otherwise: Reaction) -> Reaction:
    """The first request with just these rows meets the fault."""
    met: list[Rows] = []

    def react(rows: Rows) -> Response:
        if "".join(rows) != on or met:
            return otherwise(rows)
        met.append(rows)
        if isinstance(fault, Unserved):
            raise fault
        return fault

    return react


def poisoned(rows: Rows) -> Response:
    return said(422, "no") if "p" in rows else well(rows)
