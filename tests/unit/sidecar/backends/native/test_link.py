"""What the link learns of a model server on a Unix socket, and what it makes of its end."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batchedmodel_contract.inference.description import RAGGED, TensorSpec, TextInput
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.link.connection import LinkConnection
from batchedmodel_contract.link.hello import MAX_VERSION, OTHER_RELEASE, Hello
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.link.model_frames import (
    Adapters,
    Answer,
    Order,
    read_order,
    write_adapters,
    write_answer,
    write_profile,
)
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_contract.manifest.tenants import NOBODY
from batchedmodel_sidecar.backends.native import link
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from support.followed_link import batch_of, followed, linked
from support.link_server import LinkPeer, LinkServer, served
from support.simulate_command import PROFILE
from support.text_handlers import tokenizer_json

IDS = TensorSpec(name="ids", datatype=Datatype.INT64, shape=(RAGGED,), max_length=512)
UNREACHABLE = "the model server cannot be reached"
TEXT = TextInput(name="text", tokens="ids", max_tokens=16)


@pytest.mark.looptime
async def test_who_was_away_for_long_is_found_within_half_a_second_and_looked_for_in_peace(
    tmp_path: Path,
) -> None:
    async with followed(tmp_path / "nobody.sock") as here:
        await asyncio.sleep(60.0)
        before = here.listener.losses
        await asyncio.sleep(60.0)
        assert here.listener.losses - before == pytest.approx(2 * 60, abs=2)
        assert here.link.status.reason == UNREACHABLE


async def test_a_model_is_ready_once_it_was_described_and_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        peer = await server.peer()
        assert here.link.status.reason == "the model server has not been reached yet"
        peer.state(ModelState.LOADING, "fetching files")
        await here.listener.lost("the model is LOADING: fetching files")
        with pytest.raises(Busy, match="version 1 of the model is not served"):
            await here.link.infer(batch_of(), 1.0)
        peer.ready()
        model = await here.listener.ready()
        assert (model.description.version, model.profile) == ("1", PROFILE)
        assert here.link.status.model is model
        assert here.link.status.reason == ""


async def test_the_end_of_a_server_is_seen_at_once_and_it_is_ready_when_it_comes_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        peer = await server.peer()
        peer.ready()
        await here.listener.ready()
        peer.connection.close()
        await here.listener.lost("the model server closed the connection")
        again = await server.peer()
        again.ready()
        await here.listener.ready()


async def test_a_server_that_dies_with_frames_unread_has_closed_the_connection_as_any_other(
    tmp_path: Path,
) -> None:
    """Callers and conditions were told an error number of the operating system."""
    async with linked(tmp_path) as (here, peer):
        peer.pause()
        answer = here.link.infer(batch_of(), 10.0)
        await asyncio.sleep(0.02)  # for the frame to reach the socket
        peer.connection.abort()
        with pytest.raises(Lost, match="went away while it worked on this"):
            await answer
        await here.listener.lost("the model server closed the connection")


@pytest.mark.parametrize(
    ("state", "stuck"),
    [(ModelState.LOADING, False), (ModelState.WARMING, False), (ModelState.HUNG, True)],
)
async def test_a_server_that_starts_is_not_dead_because_the_one_before_it_was(
    state: ModelState, stuck: bool, tmp_path: Path
) -> None:
    """`batchedmodel run` ended each new process while it loaded, again and again."""
    path = tmp_path / "m.sock"
    async with followed(path) as here:
        # The connection to the next process may open before anybody saw that the other had gone.
        async with LinkServer().serving(path) as server:
            (await server.peer()).ready()
            await here.listener.ready()
            with pytest.raises(Unserved) as raised:
                await here.link.infer(batch_of(), 0.05)
            assert raised.value.status == 504
            assert here.link.status.stuck
            assert here.link.status.reason == "the model server does not answer"
            (await server.peer()).state(state)
            await here.listener.lost(f"the model is {state}")
            assert here.link.status.stuck is stuck
        await here.listener.lost(UNREACHABLE)
        await here.listener.lost(UNREACHABLE)
        assert not here.link.status.stuck


async def test_after_two_batches_in_a_row_without_an_answer_only_a_restart_helps(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        for _ in range(2):
            peer = await server.peer()
            peer.ready()
            await here.listener.ready()
            assert not here.link.status.stuck
            with pytest.raises(Unserved):
                await here.link.infer(batch_of(), 0.05)
            await here.listener.lost("the model server does not answer")
        peer = await server.peer()
        peer.ready()
        await here.listener.ready()
        assert here.link.status.stuck
        answered = here.link.infer(batch_of(), 10.0)
        number, _ = await peer.batch()
        peer.reply(number)
        await answered
        assert not here.link.status.stuck


async def test_unanswered_batches_of_one_connection_count_once(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        peer = await server.peer()
        peer.ready()
        await here.listener.ready()
        answers = [here.link.infer(batch_of(), seconds) for seconds in (0.05, 0.1)]
        for answer in answers:
            with pytest.raises(Unserved):
                await answer
        peer = await server.peer()
        peer.ready()
        await here.listener.ready()
        assert not here.link.status.stuck


async def test_a_pass_that_hangs_and_ends_needs_no_other_description(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        peer.state(ModelState.HUNG, "for 60 s")
        await here.listener.lost("the model is HUNG: for 60 s")
        assert here.link.status.stuck
        peer.state(ModelState.READY, version="1")
        await here.listener.ready()
        assert not here.link.status.stuck


async def test_what_is_said_again_of_a_model_that_is_ready_changes_nothing(
    tmp_path: Path,
) -> None:
    async with linked(tmp_path) as (here, peer):
        model = here.link.status.model
        peer.state(ModelState.READY, version="1")
        answered = here.link.infer(batch_of(), 10.0)
        number, _ = await peer.batch()
        peer.reply(number)
        await answered
        assert here.link.status.model is model


async def test_the_version_of_the_frames_is_told_while_there_is_a_link(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    async with followed(path) as here:
        assert here.link.status.link_version == 0
        async with LinkServer().serving(path) as server:
            (await server.peer()).ready()
            await here.listener.ready()
            assert here.link.status.link_version == MAX_VERSION
        await here.listener.lost(UNREACHABLE)
        assert here.link.status.link_version == 0


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(0, 0), f"{OTHER_RELEASE}, which speaks none of the versions 1 to 1 of frames"),
        (Hello(7, 7), f"{OTHER_RELEASE}, which speaks none of the versions 1 to 1 of frames"),
    ],
)
async def test_a_server_that_has_no_version_of_the_frames_in_common_is_named(
    hello: Hello, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.sock"
    async with LinkServer(hello).serving(path), followed(path) as here:
        await here.listener.lost(reason)
        assert here.link.status.model is None


async def test_a_server_that_speaks_no_frames_is_of_another_release(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_unix_server(answer, path), followed(path) as here:
        await here.listener.lost(f"{OTHER_RELEASE}, which speaks no frames")


async def test_a_server_that_hangs_up_on_the_hello_cannot_be_reached(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_unix_server(hang_up, path), followed(path) as here:
        await here.listener.lost(UNREACHABLE)


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        (Kind.STATE, b"{", "state: cannot be read"),
        (Kind.MODEL, b"\xff\xff\xff\xff", "model: cannot be read"),
        (Kind.STATE, b'{"state": "READY", "detail": "", "version": "1"}', "not described"),
        (Kind.PROFILE, b"[]", "profile"),
        (Kind.ADAPTERS, b"[]", "adapters: cannot be read"),
        (Kind.BATCH, b"", "the model server answers nonsense"),
    ],
)
async def test_nonsense_ends_the_connection_and_the_next_one_is_trusted_again(
    kind: Kind, content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        (await server.peer()).send(kind, 0, [content])
        async with asyncio.timeout(10):
            while reason not in await here.listener.reasons.get():
                pass
        (await server.peer()).ready()
        await here.listener.ready()


async def test_a_bug_over_a_frame_ends_the_connection_and_not_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.sock"

    class Failing:
        def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
            raise RuntimeError("of a test")

        def disconnected(self) -> None:
            """Nothing is kept."""

    async with LinkServer().serving(path) as server, followed(path) as here:
        here.link.texts = Failing()
        (await server.peer()).send(Kind.STEP, 1)
        await here.listener.lost("error in the sidecar: RuntimeError('of a test')")
        (await server.peer()).ready()
        await here.listener.ready()
    assert caplog.records


async def test_a_tokenizer_that_is_still_the_same_is_not_read_again(tmp_path: Path) -> None:
    """One of 54 MiB stops the loop for 1.8 s, in which callers of the version before wait."""
    file, shorter = tokenizer_json(), TextInput(name="text", tokens="ids", max_tokens=8)
    models = []
    async with linked(tmp_path) as (here, peer):
        for number, (tokenizer, text) in enumerate(
            [(file, TEXT), (file, TEXT), (file + b" ", TEXT), (file + b" ", shorter)]
        ):
            model = served(str(number))
            described = replace(model.description, inputs=(IDS,), text=text)
            peer.ready(replace(model, description=described, tokenizer=tokenizer))
            models.append(await here.listener.ready())
    first, second, third, fourth = (model.tokens for model in models)
    assert first is not None
    assert second is first
    assert third is not first
    assert fourth is not third


async def test_a_tokenizer_that_cannot_be_read_is_the_reason_why_there_is_no_model(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        model = served()
        broken = replace(
            model, description=replace(model.description, inputs=(IDS,), text=TEXT), tokenizer=b"{"
        )
        (await server.peer()).ready(broken)
        async with asyncio.timeout(10):
            while not (await here.listener.reasons.get()).startswith("tokenizer: cannot be read"):
                pass


async def test_adapters_are_there_with_their_labels_and_go_with_the_server(tmp_path: Path) -> None:
    failed = tuple(
        AdapterState(name=f"a{at}", number=at, phase=AdapterPhase.FAILED, reason="x" * 1024)
        for at in range(1, 512)
    )
    own = AdapterState(name="own", number=600, phase=AdapterPhase.READY, own_labels=True)
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        peer = await server.peer()
        labels = {600: ("ham", "spam")}
        for known in (labels, {}):
            adapters = Adapters(states=(*failed, own), labels=known)
            peer.send(Kind.ADAPTERS, 0, [write_adapters(adapters)])
        peer.ready()
        await here.listener.ready()
        assert here.adapters.ready() == ["own"]
        chosen = here.adapters.choose("own")
        assert chosen is not None
        assert chosen.labels == ("ham", "spam")
        peer.connection.close()
        await here.listener.lost("the model server closed the connection")
        assert here.adapters.ready() == []


async def test_a_profile_that_becomes_whole_is_learnt_of_the_model_that_is_there(
    tmp_path: Path,
) -> None:
    """Until the sidecar's next start it went by two points."""
    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        peer = await server.peer()
        peer.ready(replace(served(), profile=replace(PROFILE, partial=True)))
        model = await here.listener.ready()
        assert model.profile is not None
        assert model.profile.partial
        peer.send(Kind.PROFILE, 0, [write_profile(PROFILE)])
        async with asyncio.timeout(10):
            assert not (await here.listener.profiles.get()).partial
        now = here.link.status.model
        assert now is not None
        assert now.profile == PROFILE
        assert now.users is model.users
        peer.state(ModelState.HUNG)
        peer.state(ModelState.READY, version="1")
        assert (await here.listener.ready()).profile == PROFILE


async def test_a_version_is_released_when_the_last_who_needs_it_has_left(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        first = here.link.status.model
        assert first is not None
        first.users.come()
        peer.ready(served("2"))
        await here.listener.ready()
        late = here.link.infer(batch_of(version="1"), 10.0)
        number, arrived = await peer.batch()
        assert arrived.version == "1"
        peer.reply(number)
        await late
        first.users.leave()
        assert (await peer.next(Kind.RELEASE)).content.tobytes() == b"1"
        with pytest.raises(Busy, match="version 1 of the model is not served any more"):
            await here.link.infer(batch_of(version="1"), 10.0)


async def test_a_version_that_came_back_is_served_when_the_last_who_knew_it_before_leaves(
    tmp_path: Path,
) -> None:
    """As a rollback does while a request of before it still waits."""
    async with linked(tmp_path) as (here, peer):
        first = here.link.status.model
        assert first is not None
        first.users.come()
        for version in ("2", "1"):
            peer.ready(served(version))
            await here.listener.ready()
        first.users.leave()
        assert (await peer.next(Kind.RELEASE)).content.tobytes() == b"2"
        answered = here.link.infer(batch_of(version="1"), 10.0)
        number, _ = await peer.batch()
        peer.reply(number)
        await answered


async def _answer(peer: LinkPeer, order: Order, answer: Answer) -> bytes:
    frame = await peer.next(Kind.ORDER)
    kind, body = read_order(frame.content)
    assert kind is order
    peer.send(Kind.ANSWER, frame.id, write_answer(answer))
    return body


async def test_orders_pass_as_they_are_and_so_do_their_answers(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        for order, ask in (
            (Order.INDEX, here.link.index),
            (Order.LOAD, here.link.load),
            (Order.UNLOAD, here.link.unload),
        ):
            body, answer = json.dumps({"of": order}).encode(), Answer(400, b'{"error": "no"}')
            asking = asyncio.create_task(ask(body))
            assert await _answer(peer, order, answer) == body
            assert await asking == answer


async def test_of_many_who_ask_for_the_index_some_wait(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        asking = [asyncio.create_task(here.link.index()) for _ in range(50)]
        answer = Answer(200, b"[]")
        frames = [await peer.next(Kind.ORDER) for _ in range(16)]
        await asyncio.sleep(0.02)
        assert peer.frames.empty()
        for frame in frames:
            peer.send(Kind.ANSWER, frame.id, write_answer(answer))
        for _ in range(50 - 16):
            await _answer(peer, Order.INDEX, answer)
        assert await asyncio.gather(*asking) == [answer] * 50


async def test_an_order_whose_server_goes_away_hears_it(tmp_path: Path) -> None:
    async with linked(tmp_path) as (here, peer):
        loading = asyncio.create_task(here.link.load(b""))
        await peer.next(Kind.ORDER)
        peer.connection.abort()
        with pytest.raises(Unserved, match="cannot be reached, or went away") as raised:
            await loading
        assert (raised.value.status, raised.value.retry_after) == (503, 1.0)
        await peer.ended.wait()


async def test_what_is_asked_while_the_connection_opens_or_ends_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load at the moment of the connection was dropped, and its caller waited for ever."""
    refused = asyncio.Event()

    async def connect(_: str, opened: Callable[[], LinkConnection], __: SharedRegions) -> None:
        opened()
        with pytest.raises(Unserved, match="cannot be reached, or went away"):
            await here.link.load(b"")
        refused.set()
        raise ConnectionResetError

    with monkeypatch.context() as patched:
        patched.setattr(link, "connect", connect)
        async with followed(tmp_path / "nobody.sock") as here, asyncio.timeout(10):
            await refused.wait()
    async with linked(tmp_path) as (here, _):
        here.link.hang_up("of a test")
        with pytest.raises(Busy, match=UNREACHABLE):
            await here.link.infer(batch_of(), 10.0)


async def test_without_a_server_an_order_is_refused(tmp_path: Path) -> None:
    async with followed(tmp_path / "nobody.sock") as here:
        with pytest.raises(Unserved, match="cannot be reached, or went away"):
            await here.link.index()


async def test_memory_is_offered_with_the_hello_and_used_once_it_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with linked(tmp_path) as (here, peer):
        assert len(peer.descriptors) == 1
        assert "lie in memory that the model server sees" in caplog.text
        assert here.regions.place is None
        peer.connection.close()
        await here.listener.lost("the model server closed the connection")


async def test_memory_that_the_server_does_not_see_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "m.sock"
    async with LinkServer(Hello(1, 1)).serving(path) as server, followed(path) as here:
        (await server.peer()).ready()
        await here.listener.ready()
        assert here.regions.room(1 << 20, NOBODY) is None
        assert "no memory is shared with the model server: it cannot map it" in caplog.text


async def test_where_no_memory_can_be_shared_all_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def none(*_: object) -> int:
        raise OSError("of a test")

    monkeypatch.setattr("os.memfd_create", none)
    async with linked(tmp_path) as (here, peer):
        assert not peer.descriptors
        assert "no memory is shared with the model server: of a test" in caplog.text
        answered = here.link.infer(batch_of(), 10.0)
        number, _ = await peer.batch()
        peer.reply(number)
        await answered


async def test_a_link_that_looks_for_a_server_leaves_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))  # and takes no connection
        async with followed(path) as here:
            await here.listener.lost(UNREACHABLE)


@pytest.mark.interpreted
async def test_an_error_of_ours_while_it_connects_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would have caught a link that never connects again, with a pod that is never ready."""

    async def connect(*arguments: object) -> None:
        raise RuntimeError("a fault")

    path = tmp_path / "m.sock"
    async with LinkServer().serving(path) as server, followed(path) as here:
        peer = await server.peer()
        peer.ready()
        await here.listener.ready()
        with monkeypatch.context() as patched:
            patched.setattr("batchedmodel_sidecar.backends.native.link.connect", connect)
            peer.connection.abort()
            await here.listener.lost("error in the sidecar: RuntimeError('a fault')")
        peer = await server.peer()
        peer.ready()
        await here.listener.ready()
