"""The framing between the sidecar and its helper processes, and what a job is.

A message is one packet: a head of fixed size and a content, which is large buffers one behind the
other, their sizes, and a pickled value. A large content lies in shared memory instead, and so may
the body that a job works on; the packet then brings their descriptors. Both ends are this program,
started together, and no other process has the socket.
"""

import pickle
import socket
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from pickle import PickleBuffer
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_sidecar.helper.shared_memory import SharedMemory

INLINE_BYTES: Final = 40 * 1024
"""Of a content that goes in the packet: a body of 32 KiB does. A socket's buffer holds several."""
_PACKET_BYTES: Final = 64 * 1024
_APART_BYTES: Final = 128  # fewer are copied sooner than they are kept apart
_HEAD: Final = struct.Struct("<B?QQ")
_SIZE_BYTES: Final = 8


class NoMemory(Exception):
    """The values of a body take so many bytes, which are not free."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size: Final = size


@dataclass(frozen=True, slots=True)
class Work:
    """What a job is called with, in the helper."""

    model: Any
    """As its callers' model was loaded."""
    body: Any
    """A buffer, read only."""
    free: float
    """Bytes that the values of the body may take."""

    def claim(self, size: int) -> None:
        """Say what values and texts will take, at most; raises `NoMemory` before any is made."""
        if size > self.free:
            raise NoMemory(size)


Job = Callable[[Work], Any]
"""Can be pickled; raises `InvalidInput`, `Rejected` or `Unserved`."""


class Kind(IntEnum):
    """What a message is."""

    MODEL = 0
    """What the jobs behind it are for. It is not answered."""
    JOB = 1
    """Pickled with its body, if that does not lie in memory of its own."""
    GRANTED = 2
    """A job again, which has the memory that its values take."""
    RESULT = 3
    REFUSAL = 4
    """What the job raised."""
    NEEDS = 5
    """Bytes that the job's values take at most. It was not begun."""


class Content(NamedTuple):
    """A value, ready to be sent."""

    parts: list[Buffer]
    buffers: int
    """How many of the first parts are buffers of the value."""

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))


class Message(NamedTuple):
    """A message as it came. What is loaded of it may refer to its memory."""

    kind: Kind
    content: memoryview
    buffers: int
    pickled: int
    body: memoryview | None

    def load(self) -> Any:
        """The value; raises it where it is what a job raised."""
        if self.kind is Kind.REFUSAL:
            # In no variable: an error whose frames keep it would keep the memory as well.
            raise self._value()
        return self._value()

    def _value(self) -> Any:
        end = len(self.content) - self.pickled
        sizes = array("Q", self.content[end - _SIZE_BYTES * self.buffers : end].tobytes())
        ends = zip(sizes, accumulate(sizes), strict=True)
        buffers = (self.content[end - size : end] for size, end in ends)
        return pickle.loads(self.content[end:], buffers=buffers)


@dataclass(frozen=True, slots=True)
class Pickled:
    """Is pickled as a call, whose buffers are not copied, and unpickled as what it returns."""

    call: Callable[..., Any]
    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, tuple([apart(arg) for arg in self.args])


def apart(value: Any) -> Any:
    """The value, without being copied when it is pickled if it is a buffer of many bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        return value
    return PickleBuffer(value) if len(value) > _APART_BYTES else bytes(value)


def content_of(value: object) -> Content:
    """A value to be sent."""
    buffers: list[PickleBuffer] = []
    pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
    parts: list[Buffer] = [buffer.raw() for buffer in buffers]
    return Content([*parts, array("Q", map(len, parts)).tobytes(), pickled], len(parts))


def pickled_job(job: Job) -> bytes:
    """A job that is sent with one body after the other; see `with_body`."""
    return pickle.dumps((job, PickleBuffer(b"")), 5, buffer_callback=lambda _: None)


def with_body(job: bytes, body: Buffer) -> Content:
    """A job that is pickled already, and its body."""
    return Content([body, array("Q", [len(body)]).tobytes(), job], 1)


def refusal(error: Exception) -> Content:
    """An exception to be sent, without its frames."""
    return content_of(Pickled(_remade, (type(error), error.args, vars(error))))


def _remade(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    # Not by way of `__init__`, whose arguments are not known any more.
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


def send(
    connection: socket.socket,
    kind: Kind,
    content: Content,
    memory: SharedMemory | None = None,
    body: SharedMemory | None = None,
) -> None:
    """Send a content, which lies in the memory if there is one; raises `OSError`."""
    if memory is None and content.size > INLINE_BYTES:
        memory = SharedMemory()
        for part in content.parts:
            memory.write(part)
    head = _HEAD.pack(kind, memory is not None, content.buffers, len(content.parts[-1]))
    parts = [head] if memory is not None else [head, *content.parts]
    lies = [each.descriptor for each in (memory, body) if each is not None]
    if lies:
        socket.send_fds(connection, parts, lies)
    else:
        connection.sendmsg(parts)


def receive(connection: socket.socket) -> Message | None:
    """The next message; None when the other end is gone. Raises `OSError`."""
    flags = socket.MSG_CMSG_CLOEXEC
    packet, descriptors, _, _ = socket.recv_fds(connection, _PACKET_BYTES, 2, flags)
    if not packet:
        return None
    kind, in_memory, buffers, pickled = _HEAD.unpack_from(packet)
    # The memory itself goes with what refers to it; views stay.
    views = [SharedMemory(descriptor).view() for descriptor in descriptors]
    content = views.pop(0) if in_memory else memoryview(packet)[_HEAD.size :]
    return Message(Kind(kind), content, buffers, pickled, views[0] if views else None)
