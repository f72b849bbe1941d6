"""While a batch of 19 MB is on its way, what is small passes: cancels, tokens, probes.

The other way round is the same class: `tests/unit/contract/link/test_connection.py` holds it.
"""

import asyncio
from pathlib import Path

from aiohttp import ClientSession, web

from batchedmodel_contract.generation.frames import (
    StepReport,
    read_cancel,
    read_step,
    write_cancel,
    write_step,
)
from batchedmodel_contract.inference.batch import BatchRequest, Ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.link.kinds import Kind
from support.followed_link import linked

LARGE = 19 << 20
_REPORT = StepReport(
    seconds=0.01,
    running=1,
    waiting=0,
    free_blocks=1,
    blocks=1,
    backlog=0,
    preemptions=0,
    prefill_tokens=0,
)


class Texts:
    """Keeps the kinds of frames that came."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[StepReport] = asyncio.Queue()

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        assert kind == Kind.STEP
        self.steps.put_nowait(read_step(content))

    def disconnected(self) -> None:
        """Nothing is kept."""


async def test_small_frames_pass_a_large_batch_and_the_loop_goes_on(
    tmp_path: Path,
) -> None:
    async with linked(tmp_path) as (here, peer):
        texts = here.link.texts = Texts()
        large = Ragged("x", Datatype.UINT8, ((LARGE,),), (bytes(LARGE),))
        # A server that takes nothing at present: most of the batch waits at this end.
        peer.pause()
        waiting = asyncio.ensure_future(
            here.link.infer(BatchRequest(inputs=(large,), version="1"), 60.0)
        )
        await asyncio.sleep(0)
        here.link.send(Kind.CANCEL, 99, [write_cancel(1)])
        peer.send(Kind.STEP, 1, write_step(_REPORT))
        async with asyncio.timeout(10):
            assert (await texts.steps.get()).running == 1, "it comes while the batch cannot go"
        assert await _is_live()
        peer.resume()
        cancel = await peer.next(Kind.CANCEL)
        assert (cancel.id, read_cancel(99, cancel.content)[0]) == (99, 1)
        number, arrived = await peer.batch()
        assert len(arrived.inputs[0].data) == LARGE
        peer.reply(number)
        async with asyncio.timeout(180):
            await waiting


async def _is_live() -> bool:
    """Whether a port of this process answers meanwhile."""

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="live\n")

    application = web.Application()
    application.router.add_get("/live", live)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        async with (
            asyncio.timeout(10),
            ClientSession() as session,
            session.get(f"http://{host}:{port}/live") as answer,
        ):
            return answer.status == 200
    finally:
        await runner.cleanup()
