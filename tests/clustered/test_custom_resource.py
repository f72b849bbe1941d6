"""The custom resource on a real API server: what it accepts, what it says, what it shows.

Every manifest of the tables gets the same verdict from the server and from the contract's reader,
so that what serves on one machine is accepted by a cluster, and the other way round.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_kube.manifest.manifest import TAKEN_NAME_RULE, TAKEN_NAMES, read_manifest
from cluster.errors import CommandFailed
from cluster.kubernetes import ControlPlane
from support.drawn_manifests import drawn_manifests
from support.manifest_table import RightManifest, WrongManifest, right_manifests, wrong_manifests
from support.plane import CRD_NAME, install_crd, until

NAMESPACE: Final = "custom-resource"
IN_NAMESPACE: Final = f"--namespace={NAMESPACE}"
RIGHT: Final = right_manifests()
WRONG: Final = wrong_manifests()


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with the custom resource, and a namespace for these tests."""
    install_crd(control_plane)
    control_plane.kubectl("create", "namespace", NAMESPACE)
    yield control_plane
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def tried(server: ControlPlane, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The object as the server would store it; raises `CommandFailed` with its complaint."""
    completed: dict[str, Any] = json.loads(
        server.kubectl(
            *("create", IN_NAMESPACE, "--dry-run=server", "--output=json", "--filename=-"),
            stdin=json.dumps(manifest),
        )
    )
    return completed


def without_nulls(value: Any) -> Any:
    """The value without the fields that are null, which say nothing."""
    if isinstance(value, Mapping):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def is_readable(manifest: Mapping[str, Any]) -> bool:
    try:
        read_manifest(manifest)
    except InvalidManifest:
        return False
    return True


def created(server: ControlPlane, name: str, **spec: Any) -> str:
    """Makes a simulated model; returns what kubectl calls it."""
    applied(server, name, **spec)
    return f"bm/{name}"


def applied(server: ControlPlane, name: str, **spec: Any) -> str:
    manifest = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": name},
        "spec": {"model": {"handler": "simulated"}, **spec},
    }
    return server.kubectl("apply", IN_NAMESPACE, "--filename=-", stdin=json.dumps(manifest))


def stored(server: ControlPlane, model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.kubectl("get", model, IN_NAMESPACE, "--output=json"))
    return found


def report(server: ControlPlane, model: str, /, **status: object) -> None:
    """Writes the status as the operator does."""
    server.kubectl(
        *("patch", model, IN_NAMESPACE, "--subresource=status", "--type=merge"),
        *("--patch", json.dumps({"status": status})),
    )


READY: Final = {
    "type": "Ready",
    "status": "True",
    "reason": "Serving",
    "message": "2 pods serve.",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
REFUSED_REPLICAS: Final = (
    "spec.replicas: Forbidden: 3 is not allowed beside autoscaling, which owns the number of pods "
    "(`replicas: null` removes it)"
)


def test_the_definition_has_no_fault_that_the_server_would_note(server: ControlPlane) -> None:
    definition = json.loads(
        server.kubectl("get", "crd", "batchedmodels.batchedmodel.dev", "--output=json")
    )
    conditions = {one["type"]: one["status"] for one in definition["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("right", RIGHT, ids=[right.id for right in RIGHT])
def test_a_right_manifest_is_stored_as_it_is(server: ControlPlane, right: RightManifest) -> None:
    completed = tried(server, right.manifest)
    assert without_nulls(completed["spec"]) == without_nulls(right.manifest["spec"])
    assert read_manifest(completed) == read_manifest(right.manifest)


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.id for wrong in WRONG])
def test_a_wrong_manifest_is_refused_by_both_and_told_why(
    server: ControlPlane, wrong: WrongManifest
) -> None:
    with pytest.raises(CommandFailed) as caught:
        tried(server, wrong.manifest)
    assert wrong.field in str(caught.value)
    assert wrong.server in str(caught.value)
    with pytest.raises(InvalidManifest, match="^" + wrong.field.replace(".", r"\.")):
        read_manifest(wrong.manifest)


def test_any_manifest_gets_the_same_verdict_from_both(server: ControlPlane) -> None:
    manifests = list(drawn_manifests(600, seed=1))
    answer = subprocess.run(
        ["kubectl", "create", "--dry-run=server", "--output=name", "--filename=-", IN_NAMESPACE],
        env={**os.environ, **server.environment},
        input="\n---\n".join(json.dumps(manifest) for manifest in manifests),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,  # its status says only that some were refused
    )
    accepted = {line.partition("/")[2] for line in answer.stdout.splitlines()}
    readable = {one["metadata"]["name"] for one in manifests if is_readable(one)}
    assert accepted == readable, answer.stderr
    assert 100 < len(accepted) < 400  # otherwise the agreement would say little


def test_all_mistakes_of_a_manifest_are_named_in_one_go(server: ControlPlane) -> None:
    with pytest.raises(CommandFailed) as caught:
        applied(
            server,
            "several",
            model={"handler": "no class"},
            batching={"maxBatchSize": 5000, "maxQueueSize": 8},
            autoscaling={"minReplicas": 2, "maxReplicas": 1},
        )
    for mistake in (
        'spec.model.handler: Invalid value: "no class"',
        "spec.batching.maxBatchSize: Invalid value: 5000",
        "8 is below maxBatchSize (5000): the queue must hold one batch",
        "2 is above maxReplicas (1)",
    ):
        assert mistake in str(caught.value)


def test_a_status_is_written_apart_from_the_spec(server: ControlPlane) -> None:
    model = created(server, "reported")
    effective = {"batching": {"maxQueueSize": 2048}, "drain": {"timeoutSeconds": 3605}}
    report(server, model, observedGeneration=1, conditions=[READY], effective=effective)
    applied(server, "reported", batching={"maxBatchSize": 64})
    found = stored(server, model)
    assert found["metadata"]["generation"] == 2
    assert found["status"] == {
        "observedGeneration": 1,
        "conditions": [READY],
        "effective": effective,
    }


def test_a_status_that_says_no_reason_is_refused(server: ControlPlane) -> None:
    model = created(server, "unreasoned")
    with pytest.raises(CommandFailed, match=r"status\.conditions\[0\]\.reason: Required value"):
        report(server, model, conditions=[{key: READY[key] for key in READY if key != "reason"}])


def test_a_list_of_models_tells_how_they_are(server: ControlPlane) -> None:
    model = created(server, "listed", autoscaling={"maxReplicas": 4})
    url = "http://listed.custom-resource.svc"
    counts = {"ready": "2/3", "model": "simulated", "replicas": 2, "desiredReplicas": 3}
    image = {"model": {"image": "registry.example/model-server:1"}}
    runs = {**image, "batching": {"maxBatchSize": 32}}
    report(server, model, conditions=[READY], **counts, url=url, effective=runs)
    short = server.kubectl("get", model, IN_NAMESPACE).splitlines()
    assert short[0].split() == ["NAME", "READY", "MODEL", "MAX", "URL", "REASON", "AGE"]
    assert short[1].split()[:6] == ["listed", "2/3", "simulated", "4", url, "Serving"]
    wide = server.kubectl("get", model, IN_NAMESPACE, "--output=wide").splitlines()
    assert wide[0].split()[6:] == ["CLASS", "UPTODATE", "BATCH", "IMAGE", "AGE"]
    assert wide[1].split()[6:8] == ["32", "registry.example/model-server:1"]
    assert "batchedmodel.batchedmodel.dev/listed" in server.kubectl("get", "all", IN_NAMESPACE)


def test_of_a_class_each_field_is_judged_and_of_a_model_what_no_class_says(
    server: ControlPlane,
) -> None:
    def a_class(**spec: Any) -> str:
        manifest = {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModelClass",
            "metadata": {"name": "custom-resource"},
            "spec": spec,
        }
        return server.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))

    with pytest.raises(CommandFailed, match=r"spec\.batching\.maxBatchSize: Invalid value: 5000"):
        a_class(batching={"maxBatchSize": 5000})
    a_class(batching={"maxBatchSize": 100}, model={"image": "registry.example/own:1"})
    assert json.loads(server.kubectl("get", "bmc", "custom-resource", "--output=json"))["spec"] == {
        "batching": {"maxBatchSize": 100},
        "model": {"image": "registry.example/own:1"},
    }
    # With its class it may be right, which the server does not know.
    own = {"className": "custom-resource", "model": {"protocol": "V2"}}
    model = created(server, "of-a-class", **own, batching={"maxQueueSize": 20})
    assert stored(server, model)["spec"]["batching"] == {"maxQueueSize": 20}
    with pytest.raises(CommandFailed, match="2 is above maxReplicas"):
        applied(server, "wrong", **own, autoscaling={"minReplicas": 2, "maxReplicas": 1})
    server.kubectl("delete", "bmc", "custom-resource")


def test_kubectl_scales_a_model_whose_manifest_has_no_replicas(server: ControlPlane) -> None:
    model = created(server, "scaled")
    server.kubectl("scale", model, "--replicas=3", IN_NAMESPACE)
    report(server, model, replicas=2, selector="batchedmodel.dev/name=scaled")
    folder = f"/apis/batchedmodel.dev/v1alpha1/namespaces/{NAMESPACE}/batchedmodels"
    scale = json.loads(server.kubectl("get", "--raw", f"{folder}/scaled/scale"))
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "batchedmodel.dev/name=scaled"}
    # The manifest says nothing of replicas, so applying it again takes nothing back.
    applied(server, "scaled")
    assert stored(server, model)["spec"]["replicas"] == 3


def test_kubectl_does_not_scale_a_model_against_its_autoscaler(server: ControlPlane) -> None:
    model = created(server, "autoscaled", autoscaling={"maxReplicas": 4})
    with pytest.raises(CommandFailed) as caught:
        server.kubectl("scale", model, "--replicas=3", IN_NAMESPACE)
    assert REFUSED_REPLICAS in str(caught.value)


def test_a_scaled_model_gets_an_autoscaler_once_its_replicas_are_removed(
    server: ControlPlane,
) -> None:
    model = created(server, "handed-over")
    server.kubectl("scale", model, "--replicas=3", IN_NAMESPACE)
    with pytest.raises(CommandFailed) as caught:
        applied(server, "handed-over", autoscaling={"maxReplicas": 4})
    assert REFUSED_REPLICAS in str(caught.value)
    applied(server, "handed-over", autoscaling={"maxReplicas": 4}, replicas=None)
    assert "replicas" not in stored(server, model)["spec"]


def explained(server: ControlPlane, field: str) -> str:
    """Empty while the schema, or the present one, is not published."""
    try:
        return server.kubectl("explain", f"bm.spec.{field}")
    except CommandFailed:
        return ""


def test_kubectl_explains_the_fields(server: ControlPlane) -> None:
    until("the schema is published", lambda: "FIELD: batching" in explained(server, "batching"), 60)
    told = explained(server, "batching")
    assert "How requests share a forward pass." in told
    assert "maxBatchSize\t<integer>" in told
    assert "enum: Deadline, Greedy, Window" in told
    containers = explained(server, "pod.initContainers")
    assert "What runs before the model" in containers
    assert "volumeMounts\t<[]Object>" in containers
    assert "Products that will do" in explained(server, "accelerator.productLabels")


def test_a_model_that_had_its_name_before_it_was_taken_still_gets_a_status(
    server: ControlPlane,
) -> None:
    """Each write of its status was refused, so that it could not say why it is not served."""
    named = {**RIGHT[0].manifest, "metadata": {"name": TAKEN_NAMES[0]}}
    with pytest.raises(CommandFailed, match=re.escape(TAKEN_NAME_RULE)):
        tried(server, named)
    definition = json.loads(server.kubectl("get", f"crd/{CRD_NAME}", "--output=json"))
    path = "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations"
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    earlier = [
        one for one in schema["x-kubernetes-validations"] if TAKEN_NAMES[0] not in one["rule"]
    ]
    patch = [{"op": "replace", "path": path, "value": earlier}]
    server.kubectl("patch", f"crd/{CRD_NAME}", "--type=json", f"--patch={json.dumps(patch)}")
    until("the name is free", lambda: _is_taken_by(server, named))
    install_crd(server)
    until("it is taken", lambda: _refuses_another(server, named))
    said = {"status": {"observedGeneration": 1}}
    server.kubectl(
        *("patch", f"batchedmodel/{TAKEN_NAMES[0]}", IN_NAMESPACE, "--subresource=status"),
        *("--type=merge", f"--patch={json.dumps(said)}"),
    )


def _is_taken_by(server: ControlPlane, manifest: Mapping[str, Any]) -> bool:
    try:
        server.kubectl("create", IN_NAMESPACE, "--filename=-", stdin=json.dumps(manifest))
    except CommandFailed:
        return False
    return True


def _refuses_another(server: ControlPlane, manifest: Mapping[str, Any]) -> bool:
    """Of that name in another namespace."""
    try:
        server.kubectl(
            *("create", "--namespace=default", "--dry-run=server", "--filename=-"),
            stdin=json.dumps(manifest),
        )
    except CommandFailed as error:
        return TAKEN_NAME_RULE in str(error)
    return False
