"""Processes of ours beside a control plane that has no node, and what people and nodes would do.

Pods stay as the API server got them; pretend sidecars answer at addresses of this machine.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.names import GROUP, PLURAL
from cluster import CommandFailed, ControlPlane
from cluster.paths import path_of
from cluster.waiting import waited

Manifest = dict[str, Any]

CRDS = Path(__file__).parents[2] / "crds"
CRD = CRDS / "batchedmodels.yaml"
CRD_NAME = f"{PLURAL}.{GROUP}"


def apply(plane: ControlPlane, *manifests: Mapping[str, Any]) -> None:
    """Applies objects as a person would."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(items))


def install_crd(plane: ControlPlane) -> None:
    for file in sorted(CRDS.glob("*.yaml")):
        plane.kubectl("apply", "--server-side", "--force-conflicts", "--filename", file)
    until("the custom resource is established", lambda: _established(plane))


def _established(plane: ControlPlane) -> bool:
    # They are null at first.
    body = read(plane, "", f"crd/{CRD_NAME}") or {}
    conditions = (body.get("status") or {}).get("conditions") or ()
    return ("Established", "True") in [(one["type"], one["status"]) for one in conditions]


def until(what: str, holds: Callable[[], bool], seconds: float = 180.0) -> None:
    """Waits for something that happens in its own time, on a busy machine too.

    `seconds`: less where how long it takes is what is tested.
    """
    deadline = time.monotonic() + seconds
    with waited.counted():
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what}")
            time.sleep(0.2)


def get(plane: ControlPlane, namespace: str, what: str, **selectors: str) -> Manifest | None:
    """An object such as `pod/NAME`, or a list such as `pods`.

    None when it or its kind is not there, or the API server is away.
    """
    try:
        return read(plane, namespace, what, **selectors)
    except CommandFailed:
        return None


def read(plane: ControlPlane, namespace: str, what: str, **selectors: str) -> Manifest | None:
    """The same; an API server that is away raises `CommandFailed`."""
    found: Manifest | None = plane.probe.read(path_of(namespace, what, **selectors))
    return found


def set_pod_status(
    plane: ControlPlane, namespace: str, name: str, status: Mapping[str, Any]
) -> None:
    """What a node would report."""
    plane.kubectl(
        *("patch", "pod", name, f"--namespace={namespace}", "--subresource=status"),
        *("--type=merge", "--patch", json.dumps({"status": status})),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A service account, whose rights a process gets."""

    namespace: str
    name: str

    def kubeconfig(self, plane: ControlPlane, folder: Path, *, server: str = "") -> Path:
        """Writes how it reaches the API server, or whoever stands at `server` in front of it."""
        config = json.loads(plane.kubeconfig.read_text())
        token = plane.kubectl("create", "token", self.name, f"--namespace={self.namespace}")
        config["users"][0]["user"] = {"token": token.strip()}
        if server:
            config["clusters"][0]["cluster"] = {"server": server}
        path = folder / f"{self.name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process that has been started."""

    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def running_module(
    module: str, kubeconfig: Path, environment: Mapping[str, str], *, may_end_with: tuple[int, ...]
) -> Iterator[Running]:
    """`python -m module` for the block; killed at its end, unless the test has ended it before.

    The log lies beside the kubeconfig. An exit code that is not expected fails the test.
    """
    log = kubeconfig.with_name(f"{module}.log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            env={**os.environ, "KUBECONFIG": str(kubeconfig), **environment},
            stdout=output,
            stderr=output,
        )
    try:
        yield Running(process=process, log=log)
        assert process.poll() in (None, *may_end_with), log.read_text()[-4000:]
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a pretend sidecar says to one question."""

    status: int
    body: bytes


def sidecar_address(plane: ControlPlane, number: int) -> str:
    """An address of this machine for a pretended sidecar, of this control plane alone.

    Others run beside it, and unit tests that listen at addresses of their own.
    """
    return f"127.0.{80 + plane.namespace.slot.number}.{number}"


class PretendAdminPort:
    """Answers GET as a sidecar's admin port does, at an address of its own."""

    def __init__(self, address: str, answers: Callable[[str], Answer | None]) -> None:
        """`answers`: by path; None is an error of the server."""
        self.address = address

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = answers(self.path)
                if answer is None:
                    self.send_error(503)
                    return
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, ADMIN_PORT), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
