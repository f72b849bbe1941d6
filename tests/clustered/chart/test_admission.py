"""Who may write BatchedModels gets no pods by it that they may not make themselves."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchedmodel_operator.kinds import CHILDREN, Kind
from cluster import CommandFailed, ControlPlane
from support.admission_operator import (
    APPLY,
    IN_POD,
    LABELS,
    LEAST,
    NOT_OF_PODS,
    REFUSED,
    object_of,
    refusal_of_operator,
)
from support.admission_specs import (
    FREE,
    HELD,
    SERVICES,
    UPSTREAM,
    with_model,
    with_pod,
    with_service,
)
from support.admission_users import (
    ADMIN,
    AUTHOR,
    DEVELOPER,
    HOME,
    PUBLISHER,
    TEAM,
    a_release_with_users,
    complaint,
    revision,
)
from support.operator_team import SIMULATED
from support.plane import Manifest, apply, until
from support.release import Release

_AS_AUTHOR = (f"--namespace={TEAM}", f"--as={AUTHOR}")
_POLICIES = "validatingadmissionpolicies"
_BINDINGS = "validatingadmissionpolicybindings"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Release]:
    with a_release_with_users(control_plane) as installed:
        yield installed


@pytest.mark.parametrize("what", FREE)
def test_who_may_create_services_but_no_pods_may_write_what_runs_in_the_usual_pod(
    release: Release, what: str
) -> None:
    assert complaint(release, PUBLISHER, FREE[what]) == ""


@pytest.mark.parametrize("name", ["mine", "kube-dns", "redis"])
def test_a_new_service_takes_the_right_to_create_services(release: Release, name: str) -> None:
    """Callers of another's Service, or pods that look for it by variables, came to the model."""
    refusal = complaint(release, AUTHOR, SIMULATED, name=name)
    assert f"may not create Services in {TEAM}" in refusal
    assert "metadata.name" in refusal
    assert complaint(release, PUBLISHER, SIMULATED, name=name) == ""


def test_the_api_servers_name_is_refused_everywhere_and_others_where_they_serve(
    release: Release,
) -> None:
    """A model of these names gave new pods another KUBERNETES_SERVICE_HOST or _PORT."""
    for namespace in (TEAM, "default"):
        for name in ("kubernetes", "kubernetes-service"):
            refusal = complaint(release, ADMIN, SIMULATED, name=name, namespace=namespace)
            assert "metadata.name: Invalid value" in refusal
            assert f'"{name}" is a name whose variables' in refusal
    for namespace, name in (
        ("kube-system", "kube-dns"),
        ("kube-system", "metrics-server"),
        (HOME, "bm-batchedmodel-autoscaler"),
    ):
        refusal = complaint(release, ADMIN, SIMULATED, name=name, namespace=namespace)
        assert f"metadata.name {name} is that of a Service" in refusal
        assert complaint(release, ADMIN, SIMULATED, name=name) == "", "elsewhere it is a name"


@pytest.mark.parametrize("what", HELD)
def test_what_pods_are_given_besides_takes_the_right_to_create_pods(
    release: Release, what: str
) -> None:
    spec, field = HELD[what]
    refusal = complaint(release, AUTHOR, spec)
    assert f"may not create pods in {TEAM}" in refusal
    assert field in refusal
    assert "may not create pods" not in complaint(release, DEVELOPER, spec)
    assert "may not create pods" not in complaint(release, ADMIN, spec)


@pytest.mark.parametrize("what", SERVICES)
def test_what_opens_the_service_to_others_takes_the_right_to_create_services(
    release: Release, what: str
) -> None:
    spec, field = SERVICES[what]
    refusal = complaint(release, AUTHOR, spec)
    assert f"may not create Services in {TEAM}" in refusal
    assert field in refusal
    assert complaint(release, DEVELOPER, spec) == ""
    assert complaint(release, ADMIN, spec, name="open", keep=True) == ""
    edited = {**spec, "batching": {"maxBatchSize": 7}, "model": UPSTREAM["model"]}
    assert complaint(release, AUTHOR, edited, name="open") == "", "the Service stays as it is"
    closed = with_service(type="ClusterIP")
    assert complaint(release, ADMIN, closed, name="open", keep=True) == ""


@pytest.mark.parametrize("way", ["merge", "json", "apply", "replace", "generated"])
def test_no_verb_gets_round_it(release: Release, way: str) -> None:
    assert complaint(release, ADMIN, SIMULATED, name="round", keep=True) == ""
    added = {"serviceAccountName": "strong"}
    whole = json.loads(release.plane.kubectl("get", "bm/round", *_AS_AUTHOR, "--output=json"))
    whole["spec"]["pod"] = added
    fresh = {**whole, "metadata": {"generateName": "round-", "namespace": TEAM}}
    partial = {
        **{part: whole[part] for part in ("apiVersion", "kind")},
        "metadata": {"name": "round", "namespace": TEAM},
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
    assert complaint(release, ADMIN, {**SIMULATED, "replicas": 1}, name="beside", keep=True) == ""
    patch = {"spec": {"replicas": 2, "pod": {"serviceAccountName": "strong"}}}
    words = ("patch", "bm/beside", f"--subresource={subresource}", "--type=merge")
    release.plane.kubectl(*words, f"--namespace={TEAM}", f"--patch={json.dumps(patch)}")
    found = release.plane.kubectl("get", "bm/beside", f"--namespace={TEAM}", "--output=json")
    assert "pod" not in json.loads(found)["spec"]


def test_an_edit_of_a_large_manifest_costs_no_more_than_the_expressions_may(
    release: Release,
) -> None:
    variables = {f"V{number}": "x" * 1500 for number in range(30)}
    tolerations = [{"key": "k" * 200, "operator": "Exists"} for _ in range(64)]
    large = {**with_model(env=variables), "pod": {"tolerations": tolerations}}
    assert complaint(release, ADMIN, large, name="large", keep=True) == ""
    assert complaint(release, AUTHOR, {**large, "replicas": 3}, name="large") == ""


def test_an_update_that_does_not_touch_such_a_pod_is_anybodys(release: Release) -> None:
    spec = copy.deepcopy(HELD["a service account"][0])
    assert complaint(release, ADMIN, spec, name="strong", keep=True) == ""
    edited = {**spec, "batching": {"maxBatchSize": 7}, "replicas": 2}
    assert complaint(release, AUTHOR, edited, name="strong") == ""
    runs_another = {**spec, "model": {**UPSTREAM["model"], "command": ["mine"]}}
    assert "may not create pods" in complaint(release, AUTHOR, runs_another, name="strong")
    of_a_class = {**spec, "className": "other"}
    assert "may not create pods" in complaint(release, AUTHOR, of_a_class, name="strong")
    assert "may not create pods" in complaint(
        release, AUTHOR, with_pod(serviceAccountName="stronger"), name="strong"
    )
    assert complaint(release, AUTHOR, SIMULATED, name="strong") == "", "to give it up is free"


def test_who_gives_a_pod_no_token_does_not_say_what_it_fetches_with_it(release: Release) -> None:
    spec = copy.deepcopy(HELD["a Secret for a hub of adapters"][0])
    assert complaint(release, ADMIN, spec, name="adapted", keep=True) == ""
    assert complaint(release, AUTHOR, {**spec, "replicas": 2}, name="adapted") == ""
    item = {"name": "mine", "source": {"huggingFace": {"repo": "a/b"}}}
    others = {**spec, "adapters": {**spec["adapters"], "items": [item]}}
    assert "may not create pods" in complaint(release, AUTHOR, others, name="adapted")
    without = {**others, "adapters": {"items": [item]}}
    assert complaint(release, AUTHOR, without, name="adapted") == "", "to give it up is free"
    labelled = {**without, "pod": {"labels": {"app": "pay"}}}
    assert complaint(release, ADMIN, labelled, name="adapted", keep=True) == ""
    edited = {**labelled, "adapters": {"items": []}}
    assert complaint(release, AUTHOR, edited, name="adapted") == "", "what is fetched by no token"


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
    assert complaint(release, ADMIN, SIMULATED, beside=beside(most)) == ""
    refusal = complaint(release, ADMIN, SIMULATED, beside=beside(most + 2))
    assert f"metadata.{field} ha" in refusal
    assert f"{most + 2} " in refusal
    assert f"more than the {most} that" in refusal


def test_what_was_too_much_before_the_policy_may_be_made_less(release: Release) -> None:
    policy = "bm-batchedmodel-metadata"
    binding = release.plane.kubectl("get", _BINDINGS, policy, "--output=json")
    release.plane.kubectl("delete", _BINDINGS, policy)
    until("nobody asks it", lambda: complaint(release, ADMIN, SIMULATED, beside=labels(65)) == "")
    assert complaint(release, ADMIN, SIMULATED, name="noted", keep=True, beside=labels(80)) == ""
    fresh = json.loads(binding)
    fresh["metadata"] = {part: fresh["metadata"][part] for part in ("name", "labels")}
    release.plane.kubectl("create", "--filename=-", stdin=json.dumps(fresh))
    until(
        "it is asked again", lambda: complaint(release, ADMIN, SIMULATED, beside=labels(65)) != ""
    )
    edited = {**SIMULATED, "batching": {"maxBatchSize": 7}}
    assert complaint(release, AUTHOR, edited, name="noted", beside=labels(80)) == ""
    assert complaint(release, ADMIN, SIMULATED, name="noted", beside=labels(70)) == ""
    assert "81 entries" in complaint(release, AUTHOR, SIMULATED, name="noted", beside=labels(81))


def test_the_operator_writes_status_as_before(release: Release) -> None:
    spec = HELD["a privileged model"][0]
    assert complaint(release, ADMIN, spec, name="status", keep=True) == ""
    status = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "status", "namespace": TEAM},
        "status": {"observedGeneration": 1},
    }
    words = ("--server-side", "--subresource=status", "--filename=-")
    operator = f"--as={release.user('operator')}"
    release.plane.kubectl("apply", *words, operator, stdin=json.dumps(status))


@pytest.fixture(scope="module")
def owner(release: Release) -> Manifest:
    """The reference to a BatchedModel that controls, once the operator's account is bounded."""
    assert complaint(release, ADMIN, {**SIMULATED, "replicas": 1}, name="owning", keep=True) == ""
    model = json.loads(
        release.plane.kubectl("get", "bm/owning", f"--namespace={TEAM}", "--output=json")
    )
    words = {"name": "owning", "uid": model["metadata"]["uid"], "controller": True}
    stranger = object_of(Kind.CONFIG_MAP, "new")
    until(
        "the policy holds",
        lambda: REFUSED in refusal_of_operator(release, "create", body=stranger),
    )
    return {"apiVersion": model["apiVersion"], "kind": model["kind"], **words}


@pytest.mark.parametrize("kind", LEAST)
def test_the_operators_account_writes_only_what_a_model_controls(
    release: Release, owner: Manifest, kind: Kind
) -> None:
    """A thief of its token changed every ConfigMap and Deployment, and deleted others' HPAs."""
    assert {*LEAST} == {*CHILDREN, Kind.CONTROLLER_REVISION}
    apply(release.plane, object_of(kind, "strangers"), object_of(kind, "models", owner))
    loose, upstream = {**owner, "controller": False}, {**owner, "apiVersion": "example.com/v1"}
    another = {**owner, "apiVersion": "v1", "kind": "ConfigMap"}
    for owners in ([], [loose], [upstream], [another], [another, loose]):
        body = object_of(kind, "new", *owners)
        assert REFUSED in refusal_of_operator(release, "create", body=body)
    for name in ("new", "models"):
        assert refusal_of_operator(release, *APPLY, body=object_of(kind, name, owner)) == ""
    taken = object_of(kind, "strangers", owner)
    assert REFUSED in refusal_of_operator(release, *APPLY, body=taken)
    freed = object_of(kind, "models", loose)
    assert REFUSED in refusal_of_operator(release, *APPLY, body=freed)
    if kind in (Kind.AUTOSCALER, Kind.DISRUPTION_BUDGET, Kind.CONTROLLER_REVISION):
        assert REFUSED in refusal_of_operator(release, "delete", kind.lower(), "strangers")
        assert refusal_of_operator(release, "delete", kind.lower(), "models") == ""


def test_the_operators_account_repairs_what_is_a_models_without_its_control(
    release: Release, owner: Manifest
) -> None:
    apply(release.plane, object_of(Kind.CONFIG_MAP, "loose", {**owner, "controller": False}))
    repaired = object_of(Kind.CONFIG_MAP, "loose", owner)
    assert refusal_of_operator(release, *APPLY, body=repaired) == ""


def test_the_operators_account_changes_annotations_of_models_pods_only(
    release: Release, owner: Manifest
) -> None:
    """A thief of its token put an image of its own into any pod that ran."""

    def refusal(name: str, change: Manifest) -> str:
        metadata = {"name": name, "namespace": TEAM, **change.get("metadata", {})}
        body = {"apiVersion": "v1", "kind": "Pod", **change, "metadata": metadata}
        return refusal_of_operator(release, *APPLY, "--validate=false", body=body)

    account = ("get", "serviceaccount/default", f"--namespace={TEAM}", "--ignore-not-found")
    until("pods have an account", lambda: release.plane.kubectl(*account) != "")
    for name, labels in (("models", LABELS), ("strangers", {"app": "pay"})):
        pod = object_of(Kind.POD, name, spec=IN_POD)
        pod["metadata"]["labels"] = labels
        apply(release.plane, pod)
    annotated = {"metadata": {"annotations": {"batchedmodel.dev/batching": "1"}}}
    assert refusal("models", annotated) == ""
    assert "change annotations of pods only" in refusal("strangers", annotated)
    for change in NOT_OF_PODS.values():
        assert "change annotations of pods only" in refusal("models", change)


def test_the_operators_account_announces_nothing_but_models(
    release: Release, owner: Manifest
) -> None:
    about = {**owner, "namespace": TEAM}
    about.pop("controller")
    event = object_of(Kind.EVENT, "told", involvedObject=about, reason="Told", type="Normal")
    assert refusal_of_operator(release, *APPLY, body=event) == ""
    apply(release.plane, event)
    event["involvedObject"] = {**about, "kind": "Pod", "apiVersion": "v1"}
    for name in ("told", "new"):
        event["metadata"]["name"] = name
        refusal = refusal_of_operator(release, *APPLY, body=event)
        assert "Events about BatchedModels only" in refusal


def test_nobody_keeps_a_pod_template_of_a_model_who_may_not_create_deployments(
    release: Release,
) -> None:
    def write(user: str, *verb: str, owners: list[Any], **labels: str) -> None:
        body = json.dumps(revision(*owners, **labels))
        release.plane.kubectl(*verb, "--filename=-", f"--as={user}", stdin=body)

    def refused(*verb: str, owners: list[Any], **labels: str) -> None:
        with pytest.raises(CommandFailed, match="may not keep pod templates"):
            write(AUTHOR, *verb, owners=owners, **labels)

    def live(name: str) -> Any:
        words = ("get", name, f"--namespace={TEAM}", "--output=json", "--ignore-not-found")
        return json.loads(release.plane.kubectl(*words) or "{}")

    # Owners that are there, or the garbage collector takes what they own.
    assert complaint(release, ADMIN, {**SIMULATED, "replicas": 1}, name="owner", keep=True) == ""
    until("there is a stranger", lambda: live("configmap/kube-root-ca.crt"))
    model, other = live("bm/owner"), live("configmap/kube-root-ca.crt")
    labels = {"batchedmodel.dev/name": "any"}
    refused("create", owners=[model], **labels)
    refused("create", owners=[other, model], **labels)
    write(AUTHOR, "create", owners=[other], **labels)
    refused("replace", owners=[other, model], **labels)
    write(AUTHOR, "replace", owners=[model], app="of-nobody")
    refused("replace", owners=[model], **labels)
    write(release.user("operator"), "apply", "--server-side", owners=[model], **labels)
    kept = {"app": "of-nobody", **labels}
    refused("replace", owners=[model], **kept | {"batchedmodel.dev/name": "another"})
    # The garbage collector, for one, takes owners from it.
    write(AUTHOR, "replace", owners=[], **kept)


def test_the_api_server_finds_nothing_to_warn_of_in_the_expressions(release: Release) -> None:
    found = json.loads(release.plane.kubectl("get", _POLICIES, "--output=json"))
    ours = [one for one in found["items"] if one["metadata"]["name"].startswith("bm-batchedmodel-")]
    assert len(ours) == 4
    for one in ours:
        assert not one.get("status", {}).get("typeChecking", {}).get("expressionWarnings")
