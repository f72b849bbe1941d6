"""Ways to talk to an API server: kubeconfig files, kubectl, Helm, and bare requests."""

import base64
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from cluster.certificates import Pair
from cluster.commands import run


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

    def kubectl(self, *words: str | Path, stdin: str | None = None, timeout_s: float = 60) -> str:
        """Runs kubectl and returns its output. Raises `CommandFailed` with its complaint."""
        return run(
            [self._kubectl, *words],
            environment=self.environment,
            stdin=stdin,
            timeout_s=timeout_s,
        )

    def helm(self, *words: str | Path, timeout_s: float = 300) -> str:
        """Runs Helm and returns its output. Raises `CommandFailed` with its complaint."""
        return run([self._helm, *words], environment=self.environment, timeout_s=timeout_s)


class Probe:
    """Asks an API server whether it is ready, a few dozen times a second and cheaply."""

    def __init__(self, *, server: str, authority: Path, user: Pair) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(user.certificate, user.key)

    def answers(self, path: str) -> bool:
        return self.get(path) is not None

    def get(self, path: str) -> bytes | None:
        """The answer to a GET, or None unless there is one with status 200."""
        try:
            with urllib.request.urlopen(
                f"{self._server}{path}", context=self._tls, timeout=2
            ) as answer:
                body: bytes = answer.read()
                return body
        except (OSError, urllib.error.HTTPError):
            return None


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
