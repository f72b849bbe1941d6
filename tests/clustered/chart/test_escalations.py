"""Who has rights on BatchedModels only gets no pod, no Service's name and no credential by them.

Every try is a dry run of the API server: what it takes there it would take.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.model_class import read_class
from cluster import CommandFailed, ControlPlane
from support.admission_users import (
    ADMIN,
    AUTHOR,
    PUBLISHER,
    TEAM,
    a_release_with_users,
    complaint,
    revision,
)
from support.escalations import CLAIMING, EDITS, FETCHING, OPENED, PODS, STRONG
from support.operator_team import SIMULATED
from support.plane import until
from support.release import Release

_NAMES = ("redis", "kube-dns", "metrics-server", "api", "payments")
_VERBS = ("create", "replace", "apply")
_LENDING: dict[str, dict[str, Any]] = {
    "an account": {"serviceAccountName": "strong"},
    "a token": {"automountServiceAccountToken": True},
    "pull Secrets": {"imagePullSecrets": ["any"]},
    "a Secret's files": {"volumes": [{"name": "a", "secret": {"secretName": "any"}}]},
    "a claim": {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "any"}}]},
}
"""What a class gives pods of the namespaces that it allows."""


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Release]:
    with a_release_with_users(control_plane) as installed:
        others = {"plain": SIMULATED, "strong": STRONG, "fetching": FETCHING, "claiming": CLAIMING}
        for name, spec in others.items():
            assert complaint(installed, ADMIN, spec, name=name, keep=True) == ""
        yield installed


def _refused_write(release: Release, verb: str, user: str, body: dict[str, Any]) -> str:
    words = [verb, "--dry-run=server", "--filename=-", f"--as={user}"]
    words += ["--server-side"] if verb == "apply" else []
    with pytest.raises(CommandFailed) as caught:
        release.plane.kubectl(*words, stdin=json.dumps(body))
    return str(caught.value)


def test_there_are_at_least_fifty_of_them() -> None:
    tables = (PODS, OPENED, EDITS, _NAMES, _LENDING, _VERBS)
    assert sum(len(table) for table in tables) >= 50


@pytest.mark.parametrize("what", PODS)
def test_no_pod_with_more_than_what_it_runs(release: Release, what: str) -> None:
    spec, field = copy.deepcopy(PODS[what])
    assert complaint(release, ADMIN, spec) == "", "nothing else is wrong with it"
    for user, name in ((AUTHOR, "new"), (AUTHOR, "plain"), (PUBLISHER, "new")):
        refusal = complaint(release, user, spec, name=name)
        assert f"who may not create pods in {TEAM}" in refusal
        assert field in refusal


@pytest.mark.parametrize("what", OPENED)
def test_no_service_that_is_opened_to_others(release: Release, what: str) -> None:
    spec, field = OPENED[what]
    for name in ("new", "plain"):
        refusal = complaint(release, AUTHOR, spec, name=name)
        assert f"who may not create Services in {TEAM}" in refusal
        assert field in refusal


@pytest.mark.parametrize("name", _NAMES)
def test_no_service_by_a_name_of_ones_choice(release: Release, name: str) -> None:
    assert complaint(release, ADMIN, SIMULATED, name=name) == ""
    assert f"may not create Services in {TEAM}" in complaint(release, AUTHOR, SIMULATED, name=name)


def test_no_edit_of_a_plain_model_is_refused_to_its_author(release: Release) -> None:
    """All refusals above would be worth nothing if this one were refused as well."""
    edited = {"model": {"handler": "my.module:Model"}, "replicas": 2}
    assert complaint(release, AUTHOR, edited, name="plain") == ""


@pytest.mark.parametrize("what", EDITS)
def test_no_edit_of_what_another_has_given_to_a_pod(release: Release, what: str) -> None:
    before, edited = EDITS[what]
    name = {id(STRONG): "strong", id(FETCHING): "fetching", id(CLAIMING): "claiming"}[id(before)]
    assert complaint(release, ADMIN, edited, name=name) == "", "nothing else is wrong with it"
    assert complaint(release, AUTHOR, before, name=name) == "", "it may stay as it is"
    assert f"who may not create pods in {TEAM}" in complaint(release, AUTHOR, edited, name=name)


@pytest.mark.parametrize("verb", _VERBS)
def test_no_pod_template_in_the_name_of_a_model(release: Release, verb: str) -> None:
    def live(name: str) -> Any:
        words = ("get", name, f"--namespace={TEAM}", "--output=json", "--ignore-not-found")
        return json.loads(release.plane.kubectl(*words) or "{}")

    until("there is another owner", lambda: live("configmap/kube-root-ca.crt"))
    model, other = live("bm/plain"), live("configmap/kube-root-ca.crt")
    for owners in ([model], [other, model]):
        body = revision(*owners, **{"batchedmodel.dev/name": "plain"})
        if verb == "replace":
            # One that is nobody's, to be made a model's.
            stranger = json.dumps(revision(other))
            release.plane.kubectl("apply", "--filename=-", stdin=stranger)
        refusal = _refused_write(release, verb, AUTHOR, body)
        assert "may not keep pod templates" in refusal
        assert "forbidden" in _refused_write(release, verb, PUBLISHER, body)


@pytest.mark.parametrize("what", _LENDING)
def test_no_class_lends_what_is_a_namespaces(release: Release, what: str) -> None:
    head = {"apiVersion": "batchedmodel.dev/v1alpha1", "kind": "BatchedModelClass"}
    body = {**head, "metadata": {"name": "lending"}, "spec": {"pod": _LENDING[what]}}
    assert "forbidden" in _refused_write(release, "create", AUTHOR, body)
    words = ("create", "--dry-run=server", "--output=json", "--filename=-")
    lending = json.loads(release.plane.kubectl(*words, stdin=json.dumps(body)))
    # The operator reads both so, and makes nothing of what it cannot read.
    named = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "plain", "namespace": TEAM},
        "spec": {**SIMULATED, "className": "lending"},
    }
    with pytest.raises(InvalidManifest, match=f"spec.className: .* {TEAM}"):
        read_manifest(named, read_class(lending))
    lending["spec"]["allowedNamespaces"] = [TEAM]
    assert read_manifest(named, read_class(lending)).spec.class_name == "lending"
