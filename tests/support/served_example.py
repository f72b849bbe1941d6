"""Serves an example with an installed command, as a person would, and asks it."""

import json
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.request import urlopen

from support.repository import ROOT


def serve_example(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, *, compiled: bool
) -> list[str]:
    """What `run` of this command says until it is ready, after it has answered in that form."""
    words = ["run", str(ROOT / "examples/simulated.yaml"), "--port", "0"]
    with subprocess.Popen(
        [*command, *words], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        try:
            told = list(_until(running.stdout, "Ctrl-C stops it"))
            service, admin = (_url(told, name) for name in ("service", "admin"))
            with urlopen(f"{admin}/settings") as answered:
                assert json.load(answered)["compiled"] is compiled
            for values in ([1, 2], [3, 4], [5, 6]):
                x = {"name": "x", "shape": [1, 2], "datatype": "INT64", "data": values}
                body = json.dumps({"inputs": [x]}).encode()
                with urlopen(f"{service}/v2/models/simulated/infer", body) as answered:
                    assert json.load(answered)["outputs"][0]["data"] == values
        finally:
            running.send_signal(signal.SIGINT)
    assert running.returncode == 0
    return told


def _until(lines: Iterable[str], last: str) -> Iterator[str]:
    for line in lines:
        yield line
        if last in line:
            return
    raise AssertionError("it ended before it was ready")


def _url(told: Sequence[str], name: str) -> str:
    (found,) = (line.split()[1] for line in told if line.split()[:1] == [name])
    return found
