"""One process that measures from outside for how long the event loops of others stop.

    python -m support.plane_attacks.stops '{"operator": [PID, "http://ADDRESS:PORT/healthz"], ...}'

It asks each again and again. What counts of an answer's time is what the process itself computed
between question and answer, so that a busy machine, on which it waits for a processor, counts for
nothing. Each line of standard input is answered with one: by name the longest stop in seconds since
the line before and how many answers there were, as JSON. It ends with its input.
"""

import json
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_PAUSE_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 30.0
_NANOSECONDS: Final = 1e9


class _Asked:
    """One process that is asked, in a thread of its own."""

    def __init__(self, pid: int, url: str) -> None:
        self._pid = pid
        self._url = urlsplit(url)
        self._lock = threading.Lock()
        self._longest, self._answers, self._silent = 0.0, 0, 0
        threading.Thread(target=self._ask_on, daemon=True).start()

    def since_last(self) -> tuple[float, int, int]:
        """The longest stop, answers, and questions without one since the last call."""
        with self._lock:
            found = self._longest, self._answers, self._silent
            self._longest, self._answers, self._silent = 0.0, 0, 0
        return found

    def _ask_on(self) -> None:
        request = f"GET {self._url.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        place = (self._url.hostname, self._url.port)
        while True:
            time.sleep(_PAUSE_SECONDS)
            try:
                with socket.create_connection(place, timeout=_PATIENCE_SECONDS) as own:
                    before = self._computed()
                    own.sendall(request)
                    readable, _, _ = select.select([own], [], [], _PATIENCE_SECONDS)
                    took = self._computed() - before
            except OSError:
                readable, took = [], 0.0
            with self._lock:
                self._longest = max(self._longest, took)
                self._answers += bool(readable)
                self._silent += not readable

    def _computed(self) -> float:
        """Seconds of the processor that its threads have had.

        They hold the interpreter's lock in turn, so what all of them computed stops the loop.
        """
        spent = 0
        for task in Path("/proc", str(self._pid), "task").iterdir():
            spent += int((task / "schedstat").read_text().split()[0])
        return spent / _NANOSECONDS


def main(named: dict[str, tuple[int, str]]) -> None:
    """Ask, and answer lines."""
    asked = {name: _Asked(*one) for name, one in named.items()}
    for _ in sys.stdin:
        print(json.dumps({name: one.since_last() for name, one in asked.items()}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
