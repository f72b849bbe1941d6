"""An operator whose API server lets nobody in but a proxy."""

import base64
import json
from pathlib import Path
from urllib.parse import urlsplit

from cluster import ControlPlane
from support.operator_team import SIMULATED, Team
from support.plane import apply, until
from support.release import Release, remove_namespace
from support.tunnel import tunnel_to

_HOME, _TEAM = "proxy-home", "proxy-team"
_NOWHERE = 1
"""A port at which nobody listens."""


def test_the_operator_watches_and_writes_by_the_proxy_that_the_chart_names(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Both of its clients left proxies out, so that it ended without an API server."""
    cluster = json.loads(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    real = urlsplit(cluster["server"])
    assert real.hostname is not None
    assert real.port is not None
    authority = tmp_path / "authority.pem"
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    for name in (_HOME, _TEAM):
        apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    release = Release(control_plane, _HOME)
    with tunnel_to(real.hostname, real.port) as tunnel:
        release.install(
            *("--set", f"proxy.httpsProxy=http://127.0.0.1:{tunnel.port}"),
            *("--set", f"watchNamespaces={{{_TEAM}}}", "--set", "autoscaler.install=false"),
        )
        try:
            address = f"{real.hostname}:{_NOWHERE}"
            with release.operator(
                tmp_path, told={"SSL_CERT_FILE": str(authority)}, server=f"https://{address}"
            ):
                team = Team(control_plane, _TEAM)
                team.write(SIMULATED)
                until("its children are there", team.has_all)
                team.until("Reconciled", "True", "Applied")
        finally:
            release.uninstall()
            for name in (_HOME, _TEAM):
                remove_namespace(control_plane, name)
    assert tunnel.wanted == {address}
