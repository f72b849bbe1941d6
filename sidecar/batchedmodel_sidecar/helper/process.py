"""A helper process: jobs in, results out.

It takes jobs from the socket that it was given, one after the other, and ends when the other end of
the socket does, however the sidecar ended. It outlives the signals that begin a drain: bodies are
still read and answers written meanwhile.
"""

import gc
import importlib
import logging
import math
import os
import signal
import socket
import sys
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.processes import logs
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.helper.messages import (
    Content,
    Kind,
    Message,
    NoMemory,
    Work,
    content_of,
    receive,
    refusal,
    send,
)

logger: Final = logging.getLogger(__name__)

FREE_MEMORY: Final = 32 << 20
"""Bytes that the values of a body take without asking for them: one body is read at a time."""
_NICENESS: Final = 5  # the loop beside it should not wait for a core


class Worker:
    """Does one job after the other."""

    def __init__(self) -> None:
        self._model: object = None
        """Or why it cannot be read."""

    def work(self, message: Message) -> tuple[Kind, Content] | None:
        """The answer to a message; a model has none."""
        if message.kind is Kind.MODEL:
            self._learn(message)
            return None
        if isinstance(self._model, Rejected):
            return Kind.REFUSAL, refusal(self._model)
        try:
            job, body = message.load()
            free = FREE_MEMORY if message.kind is Kind.JOB else math.inf
            work = Work(self._model, body if message.body is None else message.body, free)
            return Kind.RESULT, content_of(job(work))
        except NoMemory as error:
            return Kind.NEEDS, content_of(error.size)
        except (InvalidInput, Rejected, Unserved) as error:
            return Kind.REFUSAL, refusal(error)
        except BaseException as bug:
            logger.error("error in the helper", exc_info=bug)
            text = "error in the sidecar while reading or writing this"
            return Kind.REFUSAL, refusal(_ours(text, bug))

    def _learn(self, message: Message) -> None:
        self._model = None
        try:
            self._model = message.load()
        except BaseException as error:
            logger.error("the model cannot be read: %s", type(error).__name__)
            self._model = _ours("the model cannot be read in the sidecar", error)


def _ours(text: str, bug: BaseException) -> Rejected:
    return Rejected(Rejection.INVALID, f"{text}: {type(bug).__name__}", status=500)


def main() -> None:
    """Work until the socket ends. The arguments are its descriptor and modules that hold jobs."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    logs.configure("warning", logs.inherited_format(os.environ), logs.Process.SIDECAR_HELPER)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    worker = Worker()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        while (message := receive(connection)) is not None:
            large = message.body is not None
            if large:
                # It makes millions of objects and no cycles: looking for some takes longer.
                gc.disable()
            answered = worker.work(message)
            if answered is not None:
                send(connection, *answered)
            # Let go of it before the next body comes, and not after.
            del message, answered
            if large:
                gc.enable()
                gc.collect()


if __name__ == "__main__":
    main()
