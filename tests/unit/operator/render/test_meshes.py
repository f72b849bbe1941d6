"""What `docs/clusters.md` says of service meshes, as far as rendered objects can tell."""

import re
from typing import Any

import pytest
import yaml

from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.names import DATA_PORT
from batchedmodel_operator import render
from support.operator_world import SIMULATED
from support.rendered import deployment_of, from_hub, read_model
from support.repository import ROOT

_SECTION = (ROOT / "docs/clusters.md").read_text("utf-8").split("## Service meshes\n")[1]
_PAGE = _SECTION.split("\n## ")[0]
_MANIFESTS = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", _PAGE, re.S)]
_AMBIENT = {"spec": {"pod": {"labels": {"istio.io/dataplane-mode": "ambient"}}}}
_IDS = ["Istio", "Linkerd", "ambient"]
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.mark.parametrize("manifest", [*_MANIFESTS, _AMBIENT], ids=_IDS)
def test_pods_carry_what_a_mesh_looks_for_and_stay_what_they_are(manifest: dict[str, Any]) -> None:
    said = manifest["spec"]["pod"]
    without, meshed = deployment_of(from_hub()), deployment_of(from_hub() | manifest["spec"])
    plain, template = without["spec"]["template"], meshed["spec"]["template"]
    for kind in ("labels", "annotations"):
        carried = template["metadata"][kind].items()
        assert said.get(kind, {}).items() <= carried
        assert plain["metadata"][kind].keys() <= dict(carried).keys()
    assert without["spec"]["selector"] == meshed["spec"]["selector"]
    assert template["spec"] == plain["spec"]


@pytest.mark.parametrize("manifest", _MANIFESTS, ids=_IDS[:2])
def test_a_proxy_in_the_pod_is_asked_for_as_a_native_sidecar_that_leaves_out_the_admin_port(
    manifest: dict[str, Any],
) -> None:
    annotations = manifest["spec"]["pod"]["annotations"]
    (native,) = [value for name, value in annotations.items() if "native" in name.lower()]
    (excepted,) = [value for name, value in annotations.items() if "inbound" in name.lower()]
    assert (native, excepted) == ("true", str(ADMIN_PORT))


def test_all_that_a_kubelet_asks_of_a_pod_by_network_is_at_the_admin_port() -> None:
    pod = deployment_of(from_hub())["spec"]["template"]["spec"]
    asked = [
        one["httpGet"]["port"]
        for container in (*pod["initContainers"], *pod["containers"])
        for one in (
            *(container.get(name, {}) for name in _PROBES),
            *container.get("lifecycle", {}).values(),
        )
        if "httpGet" in one
    ]
    assert asked == [ADMIN_PORT] * 6


def test_ports_have_the_names_and_the_protocol_that_the_page_says() -> None:
    (port,) = render.service(*read_model(SIMULATED))["spec"]["ports"]
    assert (
        f"the Service's port is `{port['name']}` with `appProtocol: {port['appProtocol']}`" in _PAGE
    )
    fetch, batcher = deployment_of(from_hub())["spec"]["template"]["spec"]["initContainers"]
    names = {one["name"]: one["containerPort"] for one in batcher["ports"]}
    assert names == {"http": DATA_PORT, "admin": ADMIN_PORT}
    assert f"of pods, `http` is {DATA_PORT} and `admin` is {ADMIN_PORT}" in _PAGE
    # What the page says of a proxy's place in the pod.
    assert (fetch["name"], batcher["restartPolicy"]) == ("fetch-model", "Always")
