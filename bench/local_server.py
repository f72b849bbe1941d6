"""Servers on this machine that a benchmark starts once and then measures in turns.

While one is measured the others are stopped by a signal, so that they use neither CPU nor caches.
`batchedmodel run` serves ours, from any checkout that has its environment in `.venv`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from load_generator import cache_folder
from process_family import family, family_cpu_seconds
from support.chain import sample
from support.foreign_environment import plain_variables
from support.ports import unused_port

HERE: Final = Path(__file__).resolve().parents[1]
HOST: Final = "127.0.0.1"
MODEL: Final = "m"
_START_SECONDS: Final = 180.0
_ANSWER_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 0.5
"""After a server that was stopped goes on; its timers that are due have run by then."""
_IDLE_WITHIN_SECONDS: Final = 40.0
"""What callers have left behind is done by then, or its time is over."""
_LOOK_SECONDS: Final = 0.25
_BUSY_SHARE: Final = 0.25
"""Of one core; idle servers have timers."""
_NEIGHBOUR_RUNS_BEFORE_SECONDS: Final = 5.0

TextIn = Callable[[str], Mapping[str, Any]]
"""The field of a body that holds its one text."""


def as_input(text: str) -> Mapping[str, Any]:
    """As OpenAI's clients send it."""
    return {"input": text}


class DidNotStart(Exception):
    """A server ended or did not become ready; the message is what it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a server of ours has done up to a moment."""

    at: float
    cpu_seconds: float
    """Of sidecar and model server."""
    metrics: str

    def since(self, before: "Counted", name: str, **labels: str) -> float:
        """By how much a metric has grown."""
        return sample(self.metrics, name, **labels) - sample(before.metrics, name, **labels)


@dataclass(kw_only=True)
class LocalServer:
    """A server that runs, or is stopped by a signal."""

    name: str
    process: "subprocess.Popen[bytes]"
    port: int
    path: str
    """Where requests go."""
    admin_port: int = 0
    """Of ours alone."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What each body has beside the text."""
    text_in: TextIn = as_input

    @cached_property
    def pids(self) -> Sequence[int]:
        """It and all that it has started; they stay the same from its readiness on."""
        return family(self.process.pid)

    def pause(self) -> None:
        """Stop it until it goes on, once it has nothing to do.

        A pass in the middle of which it stopped would seem to hang.
        """
        until = time.monotonic() + _IDLE_WITHIN_SECONDS
        while self._is_busy() and time.monotonic() < until:
            pass
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
        time.sleep(_SETTLE_SECONDS)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Let it run for as long as the context lasts."""
        self.go_on()
        try:
            yield
        finally:
            self.pause()

    def _is_busy(self) -> bool:
        before = family_cpu_seconds(self.process.pid)
        time.sleep(_LOOK_SECONDS)
        return family_cpu_seconds(self.process.pid) - before > _BUSY_SHARE * _LOOK_SECONDS

    def counted(self) -> Counted:
        """All counts of ours at this moment."""
        metrics = _get(f"http://{HOST}:{self.admin_port}/metrics").decode()
        return Counted(
            at=time.perf_counter(),
            cpu_seconds=family_cpu_seconds(self.process.pid),
            metrics=metrics,
        )


@contextlib.contextmanager
def local_server(
    name: str,
    command: Sequence[str],
    *,
    port: int,
    path: str,
    ready: str,
    admin_port: int = 0,
    variables: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
    text_in: TextIn = as_input,
) -> Iterator[LocalServer]:
    """Start one, wait until the path `ready` answers with 200, and leave it paused."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env={**plain_variables(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            if not _is_ready(process, f"http://{HOST}:{port}{ready}"):
                log.seek(0)
                raise DidNotStart(f"{name}:\n{log.read().decode(errors='replace')}")
            server = LocalServer(
                name=name,
                process=process,
                port=port,
                path=path,
                admin_port=admin_port,
                fields=fields or {},
                text_in=text_in,
            )
            server.pause()
            yield server
        finally:
            for pid in family(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def ours(
    name: str,
    *,
    checkout: Path | None,
    model: Mapping[str, Any],
    path: str,
    compiled: bool = True,
) -> Iterator[LocalServer]:
    """`batchedmodel run` of a manifest with this `spec.model` and defaults.

    `compiled`: with compiled modules, as in the image; otherwise as plain Python.
    """
    root = HERE if checkout is None else checkout.resolve()
    manifest = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": MODEL},
        "spec": {"model": {"handler": "hf", **model}},
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file = Path(folder, "manifest.yaml")
        file.write_bytes(orjson.dumps(manifest))  # JSON is YAML
        port, admin_port = unused_port(), unused_port()
        command = (
            *(str(root / ".venv/bin/batchedmodel"), "run", str(file)),
            *("--port", str(port), "--admin-port", str(admin_port)),
        )
        with local_server(
            name,
            command,
            port=port,
            path=path,
            ready="/v2/health/ready",
            admin_port=admin_port,
            variables={"PYTHONPATH": compiled_form(root)} if compiled else None,
            fields={"model": MODEL},
        ) as server:
            yield server


def compiled_form(checkout: Path) -> str:
    """Where the modules of a checkout are that run compiled; what is not kept is compiled once."""
    python, script = checkout / ".venv/bin/python", checkout / "images/compile_modules.py"
    ended = subprocess.run(
        [str(python), str(script), str(cache_folder(os.environ)), "--kept"],
        env=plain_variables(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ended.stdout.strip()


@contextlib.contextmanager
def busy_neighbour() -> Iterator[None]:
    """One process in an endless loop, which has run for a while before anything is measured."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(_NEIGHBOUR_RUNS_BEFORE_SECONDS)
        yield
    finally:
        process.kill()
        process.wait()


def _is_ready(process: "subprocess.Popen[bytes]", url: str) -> bool:
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError, urllib.error.URLError):
            _get(url)
            return True
        time.sleep(0.1)
    return False


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as response:
        body: bytes = response.read()
        return body
