"""Who may write BatchedModels gets no pods by it that they may not make themselves."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import CommandFailed, ControlPlane
from support.admission_specs import (
    FOREIGN,
    FREE,
    HELD,
    SERVICES,
    with_model,
    with_pod,
    with_service,
)
from support.operator_team import SIMULATED
from support.plane import apply, until
from support.release import Release, remove_namespace

_HOME, _TEAM = "admission-home", "admission-team"
_AUTHOR, _DEVELOPER, _ADMIN = "author", "developer", ""
"""Who may write BatchedModels (and, oddly, ControllerRevisions) only; who may make pods, too; who
may do everything."""
_AS_AUTHOR = (f"--namespace={_TEAM}", f"--as={_AUTHOR}")
_POLICIES = "validatingadmissionpolicies"
_BINDINGS = "validatingadmissionpolicybindings"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Release]:
    found = Release(control_plane, _HOME)
    found.install()
    apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _TEAM}})
    models = {
        "apiGroups": ["batchedmodel.dev"],
        "resources": ["batchedmodels"],
        "verbs": ["get", "create", "update", "patch"],
    }
    pods = {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["create"]}
    revisions = {
        "apiGroups": ["apps"],
        "resources": ["controllerrevisions"],
        "verbs": ["get", "create", "update"],
    }
    for user, rules in ((_AUTHOR, [models, revisions]), (_DEVELOPER, [models, pods])):
        apply(control_plane, *_role(user, rules))
    refused = with_pod(serviceAccountName="strong")
    # The API server takes a policy up some time after it was made.
    until("the policy holds", lambda: "may not create pods" in said(found, _AUTHOR, refused))
    yield found
    found.uninstall()
    for name in (_HOME, _TEAM):
        remove_namespace(control_plane, name)


def _role(user: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    group, metadata = "rbac.authorization.k8s.io", {"name": user, "namespace": _TEAM}
    head = {"apiVersion": f"{group}/v1", "metadata": metadata}
    return [
        {**head, "kind": "Role", "rules": rules},
        {
            **head,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    ]


def said(
    release: Release,
    user: str,
    spec: dict[str, Any],
    *,
    name: str = "tried",
    keep: bool = False,
    beside: dict[str, Any] | None = None,
) -> str:
    """What the API server complains of when somebody writes a BatchedModel; empty: nothing."""
    metadata = {"name": name, "namespace": _TEAM, **(beside or {})}
    body = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": metadata,
        "spec": spec,
    }
    words = ["apply", "--server-side", "--force-conflicts", "--filename=-"]
    words += [] if keep else ["--dry-run=server"]
    words += [f"--as={user}"] if user else []
    try:
        release.plane.kubectl(*words, stdin=json.dumps(body))
    except CommandFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize("what", FREE)
def test_who_may_write_models_only_may_write_what_runs_in_the_usual_pod(
    release: Release, what: str
) -> None:
    assert said(release, _AUTHOR, FREE[what]) == ""


@pytest.mark.parametrize("what", HELD)
def test_what_pods_are_given_besides_takes_the_right_to_create_pods(
    release: Release, what: str
) -> None:
    spec, field = HELD[what]
    refusal = said(release, _AUTHOR, spec)
    assert f"may not create pods in {_TEAM}" in refusal
    assert field in refusal
    assert "may not create pods" not in said(release, _DEVELOPER, spec)
    assert "may not create pods" not in said(release, _ADMIN, spec)


@pytest.mark.parametrize("what", SERVICES)
def test_what_opens_the_service_to_others_takes_the_right_to_create_services(
    release: Release, what: str
) -> None:
    spec, field = SERVICES[what]
    refusal = said(release, _AUTHOR, spec)
    assert f"may not create Services in {_TEAM}" in refusal
    assert field in refusal
    assert said(release, _DEVELOPER, spec) == ""
    assert said(release, _ADMIN, spec, name="open", keep=True) == ""
    edited = {**spec, "batching": {"maxBatchSize": 7}, "model": FOREIGN["model"]}
    assert said(release, _AUTHOR, edited, name="open") == "", "the Service stays as it is"
    closed = with_service(type="ClusterIP")
    assert said(release, _ADMIN, closed, name="open", keep=True) == ""


@pytest.mark.parametrize("way", ["merge", "json", "apply", "replace", "generated"])
def test_no_verb_gets_round_it(release: Release, way: str) -> None:
    assert said(release, _AUTHOR, SIMULATED, name="round", keep=True) == ""
    added = {"serviceAccountName": "strong"}
    whole = json.loads(release.plane.kubectl("get", "bm/round", *_AS_AUTHOR, "--output=json"))
    whole["spec"]["pod"] = added
    fresh = {**whole, "metadata": {"generateName": "round-", "namespace": _TEAM}}
    partial = {
        **{part: whole[part] for part in ("apiVersion", "kind")},
        "metadata": {"name": "round", "namespace": _TEAM},
        "spec": {"pod": added},
    }
    patch = [{"op": "add", "path": "/spec/pod", "value": added}]
    merged = json.dumps({"spec": {"pod": added}})
    words, stdin = {
        "merge": (("patch", "bm/round", "--type=merge", f"--patch={merged}"), None),
        "json": (("patch", "bm/round", "--type=json", f"--patch={json.dumps(patch)}"), None),
        "apply": (("apply", "--server-side", "--field-manager=other", "--filename=-"), partial),
        "replace": (("replace", "--filename=-"), whole),
        "generated": (("create", "--filename=-"), fresh),
    }[way]
    with pytest.raises(CommandFailed, match="may not create pods"):
        release.plane.kubectl(*words, *_AS_AUTHOR, stdin=stdin and json.dumps(stdin))


@pytest.mark.parametrize("subresource", ["status", "scale"])
def test_what_is_written_beside_the_manifest_changes_no_pod(
    release: Release, subresource: str
) -> None:
    assert said(release, _ADMIN, {**SIMULATED, "replicas": 1}, name="beside", keep=True) == ""
    patch = {"spec": {"replicas": 2, "pod": {"serviceAccountName": "strong"}}}
    words = ("patch", "bm/beside", f"--subresource={subresource}", "--type=merge")
    release.plane.kubectl(*words, f"--namespace={_TEAM}", f"--patch={json.dumps(patch)}")
    found = release.plane.kubectl("get", "bm/beside", f"--namespace={_TEAM}", "--output=json")
    assert "pod" not in json.loads(found)["spec"]


def test_an_edit_of_a_large_manifest_costs_no_more_than_the_expressions_may(
    release: Release,
) -> None:
    variables = {f"V{number}": "x" * 1500 for number in range(30)}
    tolerations = [{"key": "k" * 200, "operator": "Exists"} for _ in range(64)]
    large = {**with_model(env=variables), "pod": {"tolerations": tolerations}}
    assert said(release, _ADMIN, large, name="large", keep=True) == ""
    assert said(release, _AUTHOR, {**large, "replicas": 3}, name="large") == ""


def test_an_update_that_does_not_touch_such_a_pod_is_anybodys(release: Release) -> None:
    spec = copy.deepcopy(HELD["a service account"][0])
    assert said(release, _ADMIN, spec, name="strong", keep=True) == ""
    edited = {**spec, "batching": {"maxBatchSize": 7}, "replicas": 2}
    assert said(release, _AUTHOR, edited, name="strong") == ""
    runs_another = {**spec, "model": {**FOREIGN["model"], "command": ["mine"]}}
    assert "may not create pods" in said(release, _AUTHOR, runs_another, name="strong")
    of_a_class = {**spec, "className": "other"}
    assert "may not create pods" in said(release, _AUTHOR, of_a_class, name="strong")
    assert "may not create pods" in said(
        release, _AUTHOR, with_pod(serviceAccountName="stronger"), name="strong"
    )
    assert said(release, _AUTHOR, SIMULATED, name="strong") == "", "to give it up is free"


def test_who_gives_a_pod_no_token_does_not_say_what_it_fetches_with_it(release: Release) -> None:
    spec = copy.deepcopy(HELD["a Secret for a hub of adapters"][0])
    assert said(release, _ADMIN, spec, name="adapted", keep=True) == ""
    assert said(release, _AUTHOR, {**spec, "replicas": 2}, name="adapted") == ""
    item = {"name": "mine", "source": {"huggingFace": {"repo": "a/b"}}}
    others = {**spec, "adapters": {**spec["adapters"], "items": [item]}}
    assert "may not create pods" in said(release, _AUTHOR, others, name="adapted")
    without = {**others, "adapters": {"items": [item]}}
    assert said(release, _AUTHOR, without, name="adapted") == "", "to give it up is free"
    labelled = {**without, "pod": {"labels": {"app": "pay"}}}
    assert said(release, _ADMIN, labelled, name="adapted", keep=True) == ""
    edited = {**labelled, "adapters": {"items": []}}
    assert said(release, _AUTHOR, edited, name="adapted") == "", "what is fetched by no token"


def owners(count: int) -> dict[str, Any]:
    return {
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": f"c{number}", "uid": f"u{number}"}
            for number in range(count)
        ]
    }


def labels(count: int) -> dict[str, Any]:
    return {"labels": {f"l{number}": "v" for number in range(count)}}


def finalizers(count: int) -> dict[str, Any]:
    return {"finalizers": [f"example.com/f{number}" for number in range(count)]}


def notes(characters: int) -> dict[str, Any]:
    half = characters // 2 - 1
    return {"annotations": {"a": "n" * half, "b": "n" * half}}


@pytest.mark.parametrize(
    ("beside", "most"), [(owners, 32), (labels, 64), (finalizers, 32), (notes, 131_072)]
)
def test_what_stands_beside_a_manifest_is_bounded_for_everybody(
    release: Release, beside: Callable[[int], dict[str, Any]], most: int
) -> None:
    (field,) = beside(most)
    assert said(release, _ADMIN, SIMULATED, beside=beside(most)) == ""
    refusal = said(release, _ADMIN, SIMULATED, beside=beside(most + 2))
    assert f"metadata.{field} ha" in refusal
    assert f"{most + 2} " in refusal
    assert f"more than the {most} that" in refusal


def test_what_was_too_much_before_the_policy_may_be_made_less(release: Release) -> None:
    policy = "bm-batchedmodel-metadata"
    binding = release.plane.kubectl("get", _BINDINGS, policy, "--output=json")
    release.plane.kubectl("delete", _BINDINGS, policy)
    until("nobody asks it", lambda: said(release, _ADMIN, SIMULATED, beside=labels(65)) == "")
    assert said(release, _ADMIN, SIMULATED, name="noted", keep=True, beside=labels(80)) == ""
    fresh = json.loads(binding)
    fresh["metadata"] = {part: fresh["metadata"][part] for part in ("name", "labels")}
    release.plane.kubectl("create", "--filename=-", stdin=json.dumps(fresh))
    until("it is asked again", lambda: said(release, _ADMIN, SIMULATED, beside=labels(65)) != "")
    edited = {**SIMULATED, "batching": {"maxBatchSize": 7}}
    assert said(release, _AUTHOR, edited, name="noted", beside=labels(80)) == ""
    assert said(release, _ADMIN, SIMULATED, name="noted", beside=labels(70)) == ""
    assert "81 entries" in said(release, _AUTHOR, SIMULATED, name="noted", beside=labels(81))


def test_the_operator_writes_status_as_before(release: Release) -> None:
    spec = HELD["a privileged model"][0]
    assert said(release, _ADMIN, spec, name="status", keep=True) == ""
    status = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "status", "namespace": _TEAM},
        "status": {"observedGeneration": 1},
    }
    words = ("--server-side", "--subresource=status", "--filename=-")
    operator = f"--as={release.user('operator')}"
    release.plane.kubectl("apply", *words, operator, stdin=json.dumps(status))


def revision(*owners: dict[str, Any], **labels: str) -> dict[str, Any]:
    """A pod template as the operator keeps one, if it has a model's label and a model for owner."""
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        for owner in owners
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": "kept",
            "namespace": _TEAM,
            "labels": labels,
            "ownerReferences": references,
        },
        "revision": 1,
        "data": {"template": {"spec": {"hostPID": True}}},
    }


def test_nobody_keeps_a_pod_template_of_a_model_who_may_not_create_deployments(
    release: Release,
) -> None:
    def write(user: str, *verb: str, owners: list[Any], **labels: str) -> None:
        body = json.dumps(revision(*owners, **labels))
        release.plane.kubectl(*verb, "--filename=-", f"--as={user}", stdin=body)

    def refused(*verb: str, owners: list[Any], **labels: str) -> None:
        with pytest.raises(CommandFailed, match="may not keep pod templates"):
            write(_AUTHOR, *verb, owners=owners, **labels)

    def live(name: str) -> Any:
        words = ("get", name, f"--namespace={_TEAM}", "--output=json", "--ignore-not-found")
        return json.loads(release.plane.kubectl(*words) or "{}")

    # Owners that are there, or the garbage collector takes what they own.
    assert said(release, _ADMIN, {**SIMULATED, "replicas": 1}, name="owner", keep=True) == ""
    until("there is a stranger", lambda: live("configmap/kube-root-ca.crt"))
    model, other = live("bm/owner"), live("configmap/kube-root-ca.crt")
    labels = {"batchedmodel.dev/name": "any"}
    refused("create", owners=[model], **labels)
    refused("create", owners=[other, model], **labels)
    write(_AUTHOR, "create", owners=[other], **labels)
    refused("replace", owners=[other, model], **labels)
    write(_AUTHOR, "replace", owners=[model], app="of-nobody")
    refused("replace", owners=[model], **labels)
    write(release.user("operator"), "apply", "--server-side", owners=[model], **labels)
    kept = {"app": "of-nobody", **labels}
    refused("replace", owners=[model], **kept | {"batchedmodel.dev/name": "another"})
    # The garbage collector, for one, takes owners from it.
    write(_AUTHOR, "replace", owners=[], **kept)


def test_the_api_server_finds_nothing_to_warn_of_in_the_expressions(release: Release) -> None:
    found = json.loads(release.plane.kubectl("get", _POLICIES, "--output=json"))
    ours = [one for one in found["items"] if one["metadata"]["name"].startswith("bm-batchedmodel-")]
    assert len(ours) == 3
    for one in ours:
        assert not one.get("status", {}).get("typeChecking", {}).get("expressionWarnings")
