"""The process that prepares requests for text: bodies in, checked and tokenised requests out.

Chat templates run here, each for a second of CPU at most, in bounded memory. It takes bodies in
their order from the socket that it was given, and ends when the other end does, however the sidecar
ended.
"""

import gc
import logging
import os
import signal
import socket
import sys
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.processes import logs
from batchedmodel_sidecar.errors import Rejected
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer
from batchedmodel_sidecar.generation.native.requests.process_limits import limit_memory
from batchedmodel_sidecar.generation.native.requests.process_wire import (
    Message,
    MessageReader,
    Model,
    endpoint_of,
    read_model,
    write_refusal,
    write_request,
)

logger: Final = logging.getLogger(__name__)

_PIECE: Final = 1 << 20
_MEMORY: Final = 1 << 30
"""Bytes beside the model's: the longest body of the shortest tokens takes 0.8 GiB."""
_NICER: Final = 5  # the loop beside it should not wait for a core


class Worker:
    """Prepares one body after the other."""

    def __init__(self) -> None:
        self._texts: TextPreparer | None = None

    def work(self, message: Message) -> bytes:
        """The answer to a message; a model has none."""
        model = read_model(message)
        if model is not None:
            self._learn(model)
            return b""
        try:
            if self._texts is None:
                why = "the model's files cannot be read in the sidecar"
                raise Rejected(Rejection.INVALID, why, status=500)
            request = self._texts.prepare(endpoint_of(message), message.content)
        except (InvalidInput, Rejected) as error:
            return write_refusal(message.number, error)
        except BaseException as bug:
            logger.error("preparing a request", exc_info=bug)
            text = f"error in the sidecar while reading this: {type(bug).__name__}"
            return write_refusal(message.number, Rejected(Rejection.INVALID, text, status=500))
        return write_request(message.number, request)

    def _learn(self, model: Model) -> None:
        self._texts = None
        limit_memory(None)
        try:
            self._texts = TextPreparer(*model)
        except InvalidInput as error:
            logger.error("the model cannot be read: %s", error.mistake.field)
        limit_memory(_MEMORY)


def main() -> None:
    """Work until the socket ends."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICER)
    logs.configure("warning", logs.inherited_format(os.environ), logs.Process.PREPARING)
    worker, reader = Worker(), MessageReader()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        while data := connection.recv(_PIECE):
            for message in reader.feed(data):
                if answer := worker.work(message):
                    connection.sendall(answer)


if __name__ == "__main__":
    main()
