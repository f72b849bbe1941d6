"""Process entry of the helper: takes jobs from the socket it was given, until the sidecar ends it.

It outlives the signals that begin a drain: bodies are still read and answers written meanwhile. It
ends when the other end of its socket does, however the sidecar ended.
"""

import asyncio
import gc
import logging
import os
import pickle
import signal
import socket
import sys
from typing import Final

from batchedmodel_sidecar.codec.process.process import received
from batchedmodel_sidecar.codec.process.worker import Worker

_NICER: Final = 5  # the loop beside it should not wait for a core


def main() -> None:
    """Work until the socket ends."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICER)
    logging.basicConfig(
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s helper: %(message)s",
        datefmt="%H:%M:%S",
    )
    worker = Worker()
    # Bodies make millions of objects and no cycles: looking for some takes longer than parsing.
    gc.collect()
    gc.freeze()
    gc.disable()
    with socket.socket(fileno=int(sys.argv[1])) as connection, asyncio.Runner() as runner:
        while (taken := received(connection)) is not None:
            message, memory = taken
            answered = runner.run(worker.work(message, memory))
            memory.close()
            if answered is not None:
                reply, filled = answered
                content = pickle.dumps(reply)
                socket.send_fds(connection, [content], [filled.descriptor])
                filled.close()
            # Let go of it before the next body comes, and not after.
            del taken, memory, answered
            gc.collect()


if __name__ == "__main__":
    main()
