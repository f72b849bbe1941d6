"""A server of somebody else's whose workers are processes: each has one request at a time.

Run as a program, `worker_server.py WORKERS SECONDS FILE`: it says on which port it listens and
serves the KServe v1 protocol. Each worker writes into the file when a batch began, and when it
ended, by the clock that all processes of a machine share. Each reads one connection until it ends,
as simple servers do: while somebody keeps it open, nobody else is served.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final, NamedTuple

NEVER: Final = float("inf")


class Ran(NamedTuple):
    """One batch; `ended` is `NEVER` while it has not."""

    began: float
    ended: float
    rows: int
    worker: int

    @property
    def middle(self) -> float:
        """Half of it is done."""
        return (self.began + self.ended) / 2


@dataclass(frozen=True, kw_only=True)
class WorkerServer:
    """A running one."""

    url: str
    log: Path

    def batches(self) -> list[Ran]:
        """Those that have ended, in the order in which they began."""
        return [one for one in self._all() if one.ended < NEVER]

    def at_work(self) -> list[Ran]:
        """Those that have begun and not ended, in the order in which they began."""
        return [one for one in self._all() if one.ended == NEVER]

    def _all(self) -> list[Ran]:
        # Behind the last end of a line one may be half written.
        whole, _, _ = self.log.read_text().rpartition("\n")
        lines = [Ran(*json.loads(line)) for line in whole.splitlines()]
        # The end of a batch is written behind its beginning, and takes its place.
        return sorted({(one.worker, one.began): one for one in lines}.values())


def running(at: float, batches: Sequence[Ran]) -> int:
    """How many of them ran then."""
    return sum(one.began <= at < one.ended for one in batches)


@asynccontextmanager
async def worker_server(
    folder: Path, *, workers: int, seconds: float
) -> AsyncIterator[WorkerServer]:
    """A server with so many workers, each of which needs so long for a batch."""
    log = folder / "batches"
    log.touch()
    command = (sys.executable, __file__, str(workers), str(seconds), str(log))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.read())
        yield WorkerServer(url=f"http://127.0.0.1:{port}", log=log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _serve(workers: int, seconds: float, log: str) -> None:
    class Worker(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({"name": "m", "ready": True})

        def do_POST(self) -> None:
            began = time.monotonic()
            body = self.rfile.read(int(self.headers["Content-Length"]))
            rows = json.loads(body)["instances"]
            ran = Ran(began, NEVER, len(rows), os.getpid())
            self._note(ran)
            time.sleep(seconds)
            self._note(ran._replace(ended=time.monotonic()))
            self._answer({"predictions": rows})

        def _note(self, ran: Ran) -> None:
            with open(log, "a") as file:
                file.write(json.dumps(ran) + "\n")

        def _answer(self, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        os.write(1, str(listening.getsockname()[1]).encode())
        os.close(1)
        for _ in range(workers - 1):
            if not os.fork():
                break
        server = HTTPServer(("", 0), Worker, bind_and_activate=False)
        server.socket.close()
        server.socket = listening
        server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
