"""What becomes of a batch at our model server: a reply, a reason, or nobody who waits any more."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from batchedmodel_contract.generation.frames import read_cancel
from batchedmodel_contract.inference.batch import BatchFailure, BatchReply
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.link.batches import write_failure
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from support.followed_link import Followed, batch_of, linked
from support.link_server import LinkPeer, reply_of

SECONDS = 10.0


async def _failed(here: Followed, peer: LinkPeer, kind: Kind, parts: Sequence[Buffer]) -> Unserved:
    """Why a batch has no reply that was answered so."""
    answer = here.link.infer(batch_of(rows=2), SECONDS)
    number, _ = await peer.batch()
    peer.send(kind, number, parts)
    with pytest.raises(Unserved) as raised:
        await answer
    return raised.value


async def test_a_batch_is_sent_before_anybody_waits_for_its_reply(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        answers = [here.link.infer(batch_of(rows), SECONDS) for rows in (1, 2, 3)]
        numbers = []
        for rows in (1, 2, 3):
            number, arrived = await peer.batch()
            assert len(arrived.inputs[0].shapes) == rows
            numbers.append((number, rows))
        for number, rows in reversed(numbers):
            peer.reply(number, reply_of(rows))
        assert [len((await answer).statuses) for answer in answers] == [1, 2, 3]


async def test_what_the_servers_memory_holds_is_told_when_it_changes(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        for cost in (700, 700, 500):
            answer = here.link.infer(batch_of(), SECONDS)
            number, _ = await peer.batch()
            peer.reply(number, reply_of(max_cost=cost))
            await answer
        assert here.listener.caps == [MemoryCap(cost=700), MemoryCap(cost=500)]


@pytest.mark.parametrize(
    ("failure", "kind", "status", "message"),
    [
        (BatchFailure(status=503, message="full"), Busy, 503, "answered 503: full"),
        (BatchFailure(status=503, message="gone", at_work=True), Lost, 503, "answered 503: gone"),
    ],
)
async def test_a_batch_that_was_not_begun_and_one_that_was_lost_are_told_apart(
    failure: BatchFailure, kind: type[Unserved], status: int, message: str, tmp_path: Path
) -> None:
    async with linked(tmp_path) as (here, peer):
        error = await _failed(here, peer, Kind.FAILED, write_failure(failure))
        assert type(error) is kind
        assert error.status == status
        assert error.message == f"the model server {message}"
        assert here.link.status.model is not None


async def test_a_refusal_that_our_sidecar_never_earns_is_not_trusted(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        failure = BatchFailure(status=400, message="x: is secret")
        error = await _failed(here, peer, Kind.FAILED, write_failure(failure))
        assert (error.status, error.message) == (502, "the model server answered 400: x: is secret")
        # Others hear what quotes no request.
        await here.listener.lost("the model server answered 400")
        await peer.ended.wait()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (reply_of(3), "the model answered 3 of 2 rows"),
        (reply_of(2, output="z"), "the model answered other outputs than it declares"),
    ],
)
async def test_a_reply_that_does_not_fit_ends_the_connection(
    reply: BatchReply, reason: str, tmp_path: Path
) -> None:
    async with linked(tmp_path) as (here, peer):
        answer = here.link.infer(batch_of(rows=2), SECONDS)
        number, _ = await peer.batch()
        peer.reply(number, reply)
        with pytest.raises(Unserved, match=reason) as raised:
            await answer
        assert raised.value.status == 502
        assert here.link.status.reason == reason
        assert here.link.status.model is None


@pytest.mark.parametrize("is_late", [True, False])
async def test_behind_a_late_reply_or_a_wrong_one_the_other_batches_get_theirs(
    is_late: bool, tmp_path: Path
) -> None:
    async with linked(tmp_path) as (here, peer):
        others = [asyncio.ensure_future(here.link.infer(batch_of(), SECONDS)) for _ in range(3)]
        numbers = [(await peer.batch())[0] for _ in others]
        bad = here.link.infer(batch_of(rows=2), 0.05 if is_late else SECONDS)
        number, _ = await peer.batch()
        if not is_late:
            peer.reply(number, reply_of(3))
        with pytest.raises(Unserved) as raised:
            await bad
        assert raised.value.status == (504 if is_late else 502)
        reason = here.link.status.reason
        peer.state(ModelState.READY, version="1")
        peer.reply(numbers[0])
        await others[0]
        assert here.link.status.model is None, "whatever it says, it gets no new batch"
        with pytest.raises(Busy, match="cannot be reached"):
            await here.link.infer(batch_of(), SECONDS)
        others[1].cancel()
        await peer.next(Kind.CANCEL)
        assert not peer.ended.is_set()
        peer.reply(numbers[2])
        await others[2]
        await peer.ended.wait()
        assert here.link.status.reason == reason
        assert here.listener.models.empty()


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.FAILED])
async def test_what_cannot_be_read_is_quoted_to_its_caller_alone(
    kind: Kind, tmp_path: Path
) -> None:
    async with linked(tmp_path) as (here, peer):
        error = await _failed(here, peer, kind, [b"\x01"])
        assert error.status == 502
        assert error.message.startswith("the model server answers nonsense: ")
        assert here.link.status.reason == "the model server answers nonsense"


async def test_batches_of_a_connection_that_ends_are_lost(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        answers = [here.link.infer(batch_of(), SECONDS) for _ in range(2)]
        await peer.batch()
        peer.connection.abort()
        for answer in answers:
            with pytest.raises(Lost, match="went away while it worked on this"):
                await answer
        with pytest.raises(Busy, match="cannot be reached"):
            await here.link.infer(batch_of(), SECONDS)


async def test_what_is_no_frame_is_nonsense_to_the_batches_under_way(tmp_path: Path) -> None:
    """They are not sent again, as those of a server are that died."""
    async with linked(tmp_path) as (here, peer):
        answer = here.link.infer(batch_of(), SECONDS)
        number, _ = await peer.batch()
        peer.send(Kind.ORDER, number)
        with pytest.raises(Unserved, match="answers nonsense") as raised:
            await answer
        assert raised.value.status == 502
        await here.listener.lost("the model server answers nonsense")


async def test_who_stops_waiting_cancels_the_batch_and_its_answer_is_nobodys(
    tmp_path: Path,
) -> None:
    async with linked(tmp_path) as (here, peer):
        waiting = asyncio.ensure_future(here.link.infer(batch_of(), SECONDS))
        number, _ = await peer.batch()
        waiting.cancel()
        frame = await peer.next(Kind.CANCEL)
        assert (frame.id, read_cancel(frame.id, frame.content)[0]) == (number, 0)
        peer.reply(number)
        answer = here.link.infer(batch_of(), SECONDS)
        number, _ = await peer.batch()
        peer.reply(number)
        await answer


async def test_an_answered_batch_is_not_cancelled(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        for _ in range(2):
            answer = here.link.infer(batch_of(), SECONDS)
            number, _ = await peer.batch()  # and nothing in front of it
            peer.reply(number)
            await answer
