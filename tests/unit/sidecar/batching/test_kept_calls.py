"""What is over is not kept: rows and answers go when their call is settled."""

import asyncio
import contextlib
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_sidecar.errors import Unserved
from support.sidecar_world import PretendServer, answered, call_of, rows_of, world


class Bytes(bytearray):
    """As good as bytes, and can be watched."""


@pytest.mark.slow
@pytest.mark.looptime
async def test_a_settled_call_is_not_kept_until_its_time_is_over() -> None:
    w = world(BatchSettings(max_batch_size=1))
    waits = w.send(b"in front")
    row: Any = Bytes(b"a")
    watched = weakref.ref(row)
    await answered(w.batcher, call_of([row]))
    late = w.send(*[b"behind"] * 100)
    await asyncio.sleep(0)
    del row
    gc.collect()
    assert watched() is None
    await waits
    await late
    await w.batcher.close()


@pytest.mark.looptime
async def test_nothing_is_kept_of_a_call_that_was_told_an_error() -> None:
    w = world(BatchSettings(max_batch_size=1))
    w.server.statuses[b"a"] = 500
    row: Any = Bytes(b"a")
    watched = weakref.ref(row)
    gc.disable()
    try:
        with contextlib.suppress(Unserved):
            await answered(w.batcher, call_of([row]))
            raise AssertionError("it was answered")
        del row
        await asyncio.sleep(1.0)
        assert watched() is None
    finally:
        gc.enable()
    await w.batcher.close()


@pytest.mark.looptime
async def test_of_others_answers_nothing_is_kept_for_a_list_whose_other_rows_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies, infer = list[weakref.ref[Bytes]](), PretendServer.infer

    async def watched(self: PretendServer, request: BatchRequest, seconds: float) -> BatchReply:
        reply = await infer(self, request, seconds)
        (output,) = reply.outputs
        data = Bytes(output.data)
        replies.append(weakref.ref(data))
        return replace(reply, outputs=(output._replace(parts=(memoryview(data),)),))

    monkeypatch.setattr(PretendServer, "infer", watched)
    w = world(BatchSettings(max_batch_size=2))
    single, listed = w.send(b"a"), w.send(b"b", b"c", b"d", b"e")
    assert rows_of(await single) == [b"a"]
    del single
    await asyncio.sleep(0)
    gc.collect()
    assert not listed.done()
    assert replies[0]() is None, "it had the single one's answer beside one of the list's"
    assert rows_of(await listed) == [b"b", b"c", b"d", b"e"]
    await w.batcher.close()
