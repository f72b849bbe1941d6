"""Jobs done by a helper's worker in this process, over the framing that goes between processes."""

import asyncio
import socket
from typing import Any

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_sidecar.helper.messages import (
    Content,
    Job,
    Kind,
    Message,
    content_of,
    receive,
    send,
)
from batchedmodel_sidecar.helper.process import Worker
from batchedmodel_sidecar.helper.shared_memory import SharedMemory


def received(kind: Kind, content: Content, body: Buffer | None = None) -> Message:
    """A message as it comes at the other end; the body lies in memory of its own."""
    memory = None
    if body is not None:
        memory = SharedMemory()
        memory.write(body)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        send(ours, kind, content, body=memory)
        message = receive(theirs)
    assert message is not None
    return message


def informed(model: object) -> Worker:
    """A worker that knows the model."""
    worker = Worker()
    inform(worker, model)
    return worker


def inform(worker: Worker, model: object) -> None:
    """Send a model."""
    assert worker.work(received(Kind.MODEL, content_of(model))) is None


async def answered(
    worker: Worker, job: Job, body: Buffer | None = None, kind: Kind = Kind.JOB
) -> Message:
    """The answer to a job, as it comes at the sidecar."""
    message = received(kind, content_of((job, b"")), body)
    # A helper has no loop of its own.
    answer = await asyncio.to_thread(worker.work, message)
    assert answer is not None
    return received(*answer)


async def done(worker: Worker, job: Job, body: Buffer | None = None) -> Any:
    """The result of a job; raises what the job raises."""
    return (await answered(worker, job, body)).load()
