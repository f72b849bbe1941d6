"""The chart on a real API server: what it accepts, who may do what, upgrade and uninstall."""

import base64
import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

import pytest
import yaml

from batchedmodel_autoscaler.cluster.resources import (
    API_SERVICES,
    FRONT_PROXY,
    MODELS,
    PODS,
    SIZES,
    own_deployment,
    own_namespace,
)
from batchedmodel_autoscaler.metrics_api.documents import METRICS
from batchedmodel_kube.client import Collection
from batchedmodel_kube.names import METRICS_GROUP
from cluster.errors import CommandFailed
from cluster.kubernetes import ControlPlane
from support.chart import CHART

_NAMESPACE: Final = "chart"
_RELEASE: Final = ("bm", CHART, f"--namespace={_NAMESPACE}")
_OPERATOR: Final = f"system:serviceaccount:{_NAMESPACE}:bm-batchedmodel-operator"
_AUTOSCALER: Final = f"system:serviceaccount:{_NAMESPACE}:bm-batchedmodel-autoscaler"
_HPA: Final = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
_V1BETA2: Final = "apiservice/v1beta2.custom.metrics.k8s.io"
_WATCHED: Final = (
    *(MODELS, PODS, SIZES, *API_SERVICES[METRICS_GROUP], FRONT_PROXY),
    *(own_namespace(_NAMESPACE), own_deployment(_NAMESPACE, "bm-batchedmodel-autoscaler")),
)


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with a namespace that admits no pod but restricted ones."""
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    control_plane.kubectl(
        *("label", "namespace", _NAMESPACE), "pod-security.kubernetes.io/enforce=restricted"
    )
    yield control_plane
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def notes(server: ControlPlane) -> Iterator[str]:
    """The chart as the release `bm`: what Helm says after installing it."""
    # Other tests may have brought the definition already.
    yield server.helm("install", *_RELEASE, "--take-ownership")
    server.helm("uninstall", "bm", f"--namespace={_NAMESPACE}")


@pytest.mark.parametrize(
    "values",
    [
        "",
        f"networkPolicy.install=true,watchNamespaces={{{_NAMESPACE}}}",
        f"networkPolicy.models={{{_NAMESPACE}}},networkPolicy.callers={{{_NAMESPACE}}},"
        f"networkPolicy.egress=true,networkPolicy.fetchers={{{_NAMESPACE}}}",
    ],
)
def test_every_object_is_valid(server: ControlPlane, values: str) -> None:
    # The pod of `helm test` is admitted only where its account is.
    manifests = server.helm("template", *_RELEASE, "--skip-tests", "--set", values)
    said = server.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"),
        *("--filename", "-"),
        stdin=manifests,
    )
    documents = [one for one in yaml.safe_load_all(manifests) if one]
    assert len(said.splitlines()) == len(documents) > 15


def test_policies_of_all_namespaces_are_made_in_those_that_the_cluster_has(
    server: ControlPlane,
) -> None:
    """One that is being deleted takes no new objects: the whole installation would fail."""
    ending = f"{_NAMESPACE}-ending"
    kept = f"configmap/kept --namespace={ending}".split()
    server.kubectl("create", "namespace", ending)
    server.kubectl("create", "configmap", "kept", f"--namespace={ending}")
    server.kubectl("patch", *kept, "--patch", '{"metadata": {"finalizers": ["test/kept"]}}')
    server.kubectl("delete", "namespace", ending, "--wait=false")
    try:
        said = server.helm(
            *("install", *_RELEASE, "--take-ownership", "--dry-run=server", "--output=json"),
            *("--set", "networkPolicy.models={*}"),
        )
    finally:
        server.kubectl(
            "patch", *kept, "--type=merge", "--patch", '{"metadata": {"finalizers": []}}'
        )
    made = yaml.safe_load_all(json.loads(said)["manifest"])
    places = {
        one["metadata"]["namespace"] for one in made if one and one["kind"] == "NetworkPolicy"
    }
    assert {"default", "kube-system", _NAMESPACE} <= places
    assert ending not in places


def test_all_pods_pass_the_restricted_profile(server: ControlPlane, notes: str) -> None:
    hooks = server.helm("get", "hooks", "bm", f"--namespace={_NAMESPACE}")
    templates = [one for one in yaml.safe_load_all(hooks) if one and one["kind"] == "Pod"]
    templates[0]["spec"]["serviceAccountName"] = "default"  # its own comes with it
    for deployment in ("bm-batchedmodel-operator", "bm-batchedmodel-autoscaler"):
        template = _get(server, f"deployment/{deployment}")["spec"]["template"]
        template["metadata"]["name"] = deployment
        templates.append(template)
    for template in templates:
        pod = {**template, "apiVersion": "v1", "kind": "Pod"}
        name = template["metadata"]["name"]
        said = server.kubectl(
            *("create", f"--namespace={_NAMESPACE}", "--dry-run=server", "--filename", "-"),
            stdin=json.dumps(pod),
        )
        assert said == f"pod/{name} created (server dry run)\n"


def test_the_manifest_in_the_notes_is_accepted(server: ControlPlane, notes: str) -> None:
    text = notes.partition("<<END\n")[2].partition("    END\n")[0]
    assert "kind: BatchedModel" in text
    said = server.kubectl(
        *("apply", f"--namespace={_NAMESPACE}", "--dry-run=server", "--filename", "-"),
        stdin=text,
    )
    assert said == "batchedmodel.batchedmodel.dev/simulated created (server dry run)\n"
    assert "custom.metrics.k8s.io/v1beta2" in notes
    assert f"helm uninstall bm --namespace {_NAMESPACE}" in notes


@pytest.mark.parametrize(
    "question",
    [
        "watch batchedmodel.dev batchedmodels",
        "watch batchedmodel.dev batchedmodelclasses",
        "patch batchedmodel.dev batchedmodels/status",
        "create apps deployments",
        "patch apps deployments",
        "create core configmaps",
        "patch autoscaling horizontalpodautoscalers",
        "delete policy poddisruptionbudgets",
        "patch core pods",
        "watch apps replicasets",
        "get coordination.k8s.io leases bm-batchedmodel-operator chart",
        "create apps controllerrevisions",
        "delete apps controllerrevisions",
        "create core events",
        "create coordination.k8s.io leases bm-batchedmodel-operator chart",
        "update coordination.k8s.io leases bm-batchedmodel-operator chart",
    ],
)
def test_the_operator_may(server: ControlPlane, notes: str, question: str) -> None:
    assert _may(server, _OPERATOR, question)


@pytest.mark.parametrize(
    "question",
    [
        "get core secrets",
        "update coordination.k8s.io leases bm-batchedmodel-operator kube-system",
        "update coordination.k8s.io leases other chart",
        "create core pods",
        "delete core pods",
        "delete core services",
        "delete apps deployments",
        "create core pods/exec",
        "patch batchedmodel.dev batchedmodels",
        "delete batchedmodel.dev batchedmodels",
        "create batchedmodel.dev batchedmodelclasses",
        "patch apiregistration.k8s.io apiservices v1beta2.custom.metrics.k8s.io",
        "patch apiextensions.k8s.io customresourcedefinitions",
        "watch apiextensions.k8s.io customresourcedefinitions batchedmodels.batchedmodel.dev",
        "create rbac.authorization.k8s.io clusterroles",
    ],
)
def test_the_operator_may_not(server: ControlPlane, notes: str, question: str) -> None:
    assert not _may(server, _OPERATOR, question)


@pytest.mark.parametrize("resource", _WATCHED, ids=str)
def test_the_autoscaler_may_list_and_watch(
    server: ControlPlane, notes: str, resource: Collection
) -> None:
    def get(**query: str) -> str:
        path = f"{resource.path}?{urlencode({**resource.selectors, **query})}"
        return server.kubectl("get", "--raw", path, f"--as={_AUTOSCALER}")

    version = json.loads(get(limit="1"))["metadata"]["resourceVersion"]
    get(watch="true", resourceVersion=version, timeoutSeconds="1")


@pytest.mark.parametrize("resource", API_SERVICES[METRICS_GROUP], ids=str)
def test_the_autoscaler_may_write_its_apiservices(
    server: ControlPlane, notes: str, resource: Collection
) -> None:
    for verb in ("patch", "delete"):
        question = f"{verb} apiregistration.k8s.io apiservices {resource.name}"
        assert _may(server, _AUTOSCALER, question)


def test_the_autoscaler_may_hold_its_lease(server: ControlPlane, notes: str) -> None:
    for verb in ("get", "create", "update"):
        lease = f"{verb} coordination.k8s.io leases bm-batchedmodel-autoscaler {_NAMESPACE}"
        assert _may(server, _AUTOSCALER, lease)


def test_the_autoscaler_may_say_what_it_learnt(server: ControlPlane, notes: str) -> None:
    assert _may(server, _AUTOSCALER, "patch batchedmodel.dev batchedmodels/status m models")


@pytest.mark.parametrize(
    "question",
    [
        "get core secrets",
        "patch core pods",
        "patch batchedmodel.dev batchedmodels",
        "update batchedmodel.dev batchedmodels/status",
        "delete apiregistration.k8s.io apiservices v1.apps",
        "create apiregistration.k8s.io apiservices",
        "list apiregistration.k8s.io apiservices",
        "get core configmaps kube-root-ca.crt kube-system",
        "list core namespaces",
        "patch apps deployments",
        f"delete apps deployments bm-batchedmodel-autoscaler {_NAMESPACE}",
    ],
)
def test_the_autoscaler_may_not(server: ControlPlane, notes: str, question: str) -> None:
    assert not _may(server, _AUTOSCALER, question)


@pytest.mark.parametrize("metric", METRICS)
def test_the_hpa_may_read_what_it_scales_by(server: ControlPlane, notes: str, metric: str) -> None:
    # In this API the kind of the described object, group included, stands where resources stand.
    question = f"get custom.metrics.k8s.io batchedmodels.batchedmodel.dev/{metric} m models"
    assert _may(server, _HPA, question)


@pytest.mark.parametrize(
    ("role", "questions"),
    [
        ("view", {"get batchedmodels": True, "create batchedmodels": False}),
        ("edit", {"delete batchedmodels": True, "patch batchedmodels/scale": True}),
        ("admin", {"create batchedmodels": True, "patch batchedmodels/status": False}),
    ],
)
def test_the_usual_roles_cover_batched_models(
    server: ControlPlane, notes: str, role: str, questions: dict[str, bool]
) -> None:
    server.kubectl(
        *("create", "rolebinding", f"{role}s", f"--clusterrole={role}", f"--user={role}er"),
        f"--namespace={_NAMESPACE}",
    )
    answers = {
        question: _may(
            server, f"{role}er", f"{question.replace(' ', ' batchedmodel.dev ')} m {_NAMESPACE}"
        )
        for question in questions
    }
    assert answers == questions


def test_an_upgrade_leaves_the_autoscalers_certificate_in_place(
    server: ControlPlane, notes: str
) -> None:
    assert "caBundle" not in _get(server, _V1BETA2)["spec"]
    authority = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
    bundle = base64.b64encode(authority.encode()).decode()
    patch = json.dumps({"spec": {"caBundle": bundle}})
    server.kubectl("patch", _V1BETA2, "--type=merge", "--patch", patch)
    before = _get(server, _V1BETA2)["metadata"]["uid"]
    server.helm("upgrade", *_RELEASE, "--set", "autoscaler.pollSeconds=3")
    found = _get(server, _V1BETA2)
    assert found["spec"]["caBundle"] == bundle
    assert found["metadata"]["uid"] == before


def test_an_upgrade_that_changes_nothing_starts_no_pod_anew(
    server: ControlPlane, notes: str
) -> None:
    def generations() -> list[int]:
        found = _get(server, "deployments")["items"]
        return [one["metadata"]["generation"] for one in found]

    before = generations()
    server.helm("upgrade", *_RELEASE, "--reuse-values")
    assert generations() == before


def test_an_uninstall_leaves_the_definitions_and_nothing_else(
    server: ControlPlane, notes: str
) -> None:
    # The custom metrics are served by the release that is there.
    metrics = "--set=customMetrics.register=false,externalMetrics.register=true"
    place = f"--namespace={_NAMESPACE}"
    server.helm("install", "other", CHART, place, "--take-ownership", metrics)
    server.helm("uninstall", "other", f"--namespace={_NAMESPACE}", "--wait")
    kinds = "deployments,services,serviceaccounts,roles,rolebindings"
    mine = "--selector=app.kubernetes.io/instance=other"
    assert not server.kubectl("get", kinds, "--all-namespaces", mine, "--output=name")
    kinds = "clusterroles,clusterrolebindings,apiservices,customresourcedefinitions"
    left = server.kubectl("get", kinds, mine, "--output=name").split()
    kind = "customresourcedefinition.apiextensions.k8s.io"
    names = ("batchedmodelclasses", "batchedmodels")
    assert sorted(left) == [f"{kind}/{name}.batchedmodel.dev" for name in names]
    # As the notes say, another release must say that it takes the definitions over.
    with pytest.raises(CommandFailed, match=r"batchedmodel(s|classes)\.batchedmodel\.dev"):
        server.helm("install", "third", CHART, place, metrics)


def _get(server: ControlPlane, what: str) -> dict[str, Any]:
    text = server.kubectl("get", what, f"--namespace={_NAMESPACE}", "--output=json")
    found: dict[str, Any] = json.loads(text)
    return found


def _may(server: ControlPlane, who: str, question: str) -> bool:
    """Asks `verb group resource[/subresource] [name [namespace]]`."""
    verb, group, resource, name, namespace = [*question.split(), "", ""][:5]
    resource, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": who,
            "resourceAttributes": {
                "verb": verb,
                "group": "" if group == "core" else group,
                "resource": resource,
                "subresource": subresource,
                "name": name,
                "namespace": namespace,
            },
        },
    }
    answer = server.probe.created("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    allowed = answer["status"]["allowed"]
    assert isinstance(allowed, bool)
    return allowed
