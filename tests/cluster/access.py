"""Ways to talk to an API server: kubeconfig files, kubectl, Helm, and bare requests."""

import base64
import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.certificates import Pair
from cluster.commands import run
from cluster.errors import CommandFailed
from cluster.waiting import waited


class Access:
    """An API server as a user named by a kubeconfig file sees it."""

    def __init__(self, *, kubeconfig: Path, programs: Mapping[str, Path], scratch: Path) -> None:
        """`programs`: kubectl and helm; `scratch`: folder for what they keep at home otherwise."""
        self.kubeconfig = kubeconfig
        self._kubectl = programs["kubectl"]
        self._helm = programs["helm"]
        self.environment: Mapping[str, str] = {
            # With these a person's own shell talks to this cluster.
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{self._kubectl.parent}:{self._helm.parent}:{os.environ.get('PATH', '')}",
            "KUBECACHEDIR": str(scratch / "kubectl"),
            "HELM_CACHE_HOME": str(scratch / "helm-cache"),
            "HELM_CONFIG_HOME": str(scratch / "helm-config"),
            "HELM_DATA_HOME": str(scratch / "helm-data"),
        }

    def kubectl(self, *words: str | Path, stdin: str | None = None, timeout_s: float = 180) -> str:
        """Runs kubectl and returns its output. Raises `CommandFailed` with its complaint."""
        with waited.counted():
            return run(
                [self._kubectl, *words],
                environment=self.environment,
                stdin=stdin,
                timeout_s=timeout_s,
            )

    def helm(self, *words: str | Path, timeout_s: float = 300) -> str:
        """Runs Helm and returns its output. Raises `CommandFailed` with its complaint."""
        with waited.counted():
            return run([self._helm, *words], environment=self.environment, timeout_s=timeout_s)


class Probe:
    """Bare requests to an API server, a few dozen a second and cheaply.

    A kubectl takes a tenth of a second of a core, which tests that wait would spend all the time.
    """

    def __init__(self, *, server: str, authority: Path, user: Pair) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(user.certificate, user.key)

    def answers(self, path: str) -> bool:
        """Whether a GET is answered with status 200."""
        try:
            self._asked(path, None, 2)
        except (OSError, http.client.HTTPException):
            return False
        return True

    def read(self, path: str, *, timeout_s: float = 60) -> Any:
        """The JSON at a path, an object or a list; None where there is none.

        Raises:
            CommandFailed: the API server says something else, or nothing.
        """
        with waited.counted():
            try:
                return json.loads(self._asked(path, None, timeout_s))
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                raise CommandFailed(f"{path}: {error} {error.read().decode()}") from error
            except (OSError, http.client.HTTPException) as error:
                raise CommandFailed(f"{path}: {error}") from error

    def created(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 60) -> Any:
        """What the API server makes of an object that is posted, such as a question of rights.

        Raises:
            CommandFailed: it refuses.
        """
        with waited.counted():
            try:
                return json.loads(self._asked(path, body, timeout_s))
            except urllib.error.HTTPError as error:
                raise CommandFailed(f"{path}: {error} {error.read().decode()}") from error
            except (OSError, http.client.HTTPException) as error:
                raise CommandFailed(f"{path}: {error}") from error

    def _asked(self, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> bytes:
        request = urllib.request.Request(
            f"{self._server}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, context=self._tls, timeout=timeout_s) as answer:
            content: bytes = answer.read()
            return content


def write_kubeconfig(path: Path, *, server: str, authority: Path, user: Pair) -> Path:
    """Writes a kubeconfig that holds all it needs, so that it can be handed around."""

    def embedded(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    name = "batchedmodel-test"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [
            {
                "name": name,
                "cluster": {"server": server, "certificate-authority-data": embedded(authority)},
            }
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": embedded(user.certificate),
                    "client-key-data": embedded(user.key),
                },
            }
        ],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=2))
    return path
