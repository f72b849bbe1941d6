"""The model server's end of the link, for tests of the sidecar's end."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from batchedmodel_contract.inference.batch import (
    BatchReply,
    BatchRequest,
    Ragged,
)
from batchedmodel_contract.inference.description import CostRule, ModelDescription, TensorSpec
from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.link.batches import read_batch, write_reply
from batchedmodel_contract.link.connection import (
    Frame,
    LinkConnection,
)
from batchedmodel_contract.link.hello import (
    HELLO_BYTES,
    Hello,
    common_version,
    read_hello,
    write_hello,
)
from batchedmodel_contract.link.kinds import TO_SERVER, Kind
from batchedmodel_contract.link.model_frames import (
    ServedModel,
    State,
    write_model,
    write_state,
)
from batchedmodel_contract.link.model_state import ModelState
from support.simulate_command import PROFILE

SECONDS = 10.0


def described(version: str = "1") -> ModelDescription:
    """A model of one whole number in and one out."""
    return ModelDescription(
        name="m",
        version=version,
        platform="torch",
        inputs=(TensorSpec(name="x", datatype=Datatype.INT64, shape=(1,)),),
        outputs=(TensorSpec(name="y", datatype=Datatype.INT64, shape=(1,)),),
        cost_rule=CostRule.ROWS,
    )


def served(version: str = "1") -> ServedModel:
    """That model, as its server describes it."""
    return ServedModel(description=described(version), profile=PROFILE)


def reply_of(rows: int = 1, output: str = "y", **others: int) -> BatchReply:
    """A reply with zeros for so many rows."""
    return BatchReply(
        outputs=(Ragged(output, Datatype.INT64, ((1,),) * rows, (bytes(8 * rows),)),),
        statuses=(200,) * rows,
        errors=("",) * rows,
        compute_seconds=0.001,
        queue_seconds=0.0,
        tokens=rows,
        padded_tokens=rows,
        **others,
    )


class LinkPeer:
    """One connection of a sidecar."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = list(descriptors)
        """Of the regions that came with its hello."""
        self.connection = LinkConnection(self, TO_SERVER)
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.ended = asyncio.Event()
        self._transport: asyncio.Transport

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """See `FrameHandler`."""
        self.frames.put_nowait(Frame(kind, frame_id, content))

    def disconnected(self, reason: str) -> None:
        """See `FrameHandler`."""
        self.ended.set()
        while self.descriptors:
            os.close(self.descriptors.pop())

    def connected(self, transport: asyncio.Transport) -> None:
        """Over which its frames come."""
        self._transport = transport

    def send(self, kind: Kind, frame_id: int = 0, parts: Sequence[Buffer] = (b"",)) -> None:
        """Send a frame."""
        self.connection.send(kind, frame_id, parts)

    def pause(self) -> None:
        """Read nothing that the sidecar sends."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def state(self, state: ModelState, detail: str = "", version: str | None = None) -> None:
        """Say how the model is."""
        self.send(Kind.STATE, 0, [write_state(State(state, detail, version))])

    def ready(self, model: ServedModel | None = None) -> None:
        """Say that a model is ready."""
        model = served() if model is None else model
        self.send(Kind.MODEL, 0, write_model(model))
        self.state(ModelState.READY, version=model.description.version)

    async def next(self, *kinds: Kind) -> Frame:
        """The next frame, which is of one of these kinds."""
        async with asyncio.timeout(SECONDS):
            frame = await self.frames.get()
        assert frame.kind in kinds, Kind(frame.kind)
        return frame

    async def batch(self) -> tuple[int, BatchRequest]:
        """The next frame, which is a batch, and its number."""
        frame = await self.next(Kind.BATCH)
        return frame.id, read_batch(frame.content)

    def reply(self, number: int, reply: BatchReply | None = None) -> None:
        """Answer a batch."""
        self.send(Kind.REPLY, number, write_reply(reply_of() if reply is None else reply))


Meet = Callable[[LinkPeer], Coroutine[None, None, None]]


class LinkServer:
    """Takes connections of sidecars, one behind the other."""

    def __init__(self, hello: Hello | None = None) -> None:
        """`hello`: what it answers; None: the version that both speak."""
        self._hello = hello
        self._peers: asyncio.Queue[LinkPeer] = asyncio.Queue()
        self.open: list[LinkPeer] = []

    async def peer(self) -> LinkPeer:
        """The next connection."""
        async with asyncio.timeout(SECONDS):
            return await self._peers.get()

    @asynccontextmanager
    async def serving(self, path: Path, meet: Meet | None = None) -> AsyncIterator["LinkServer"]:
        """Listen at a path; `meet` handles each connection, or `peer` gives it."""
        unlink(path)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.setblocking(False)
            listening.bind(str(path))
            listening.listen()
            accepting = asyncio.create_task(self._accept(listening, meet))
            try:
                yield self
            finally:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
                for peer in self.open:
                    peer.connection.abort()
                unlink(path)

    async def _accept(self, listening: socket.socket, meet: Meet | None) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as meeting:
            while True:
                plug, _ = await loop.sock_accept(listening)
                hello, descriptors = await _first_bytes(plug)
                version = common_version(read_hello(hello))
                peer = LinkPeer(descriptors)
                await loop.sock_sendall(
                    plug, write_hello(self._hello or Hello(version, version, bool(descriptors)))
                )
                transport, _ = await loop.connect_accepted_socket(partial(_connection, peer), plug)
                peer.connected(transport)
                self.open.append(peer)
                self._peers.put_nowait(peer)
                if meet is not None:
                    meeting.create_task(meet(peer))


def unlink(path: Path) -> None:
    """Remove a socket, if it is there."""
    path.unlink(missing_ok=True)


def _connection(peer: LinkPeer) -> LinkConnection:
    return peer.connection


async def _first_bytes(plug: socket.socket) -> tuple[bytes, list[int]]:
    """A hello, and the descriptors that came with it."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    plug.setblocking(False)
    loop.add_reader(plug, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(plug)
    hello, descriptors, _, _ = socket.recv_fds(plug, HELLO_BYTES, 2)
    return hello, list(descriptors)
