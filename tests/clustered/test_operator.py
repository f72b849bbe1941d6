"""The operator as a process at a real API server with all of Kubernetes' controllers."""

import itertools
import json
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.batching import settings_from_json
from batchedmodel_contract.kubernetes_names import (
    BATCHING_HASH_ANNOTATION,
    DATA_PORT,
    MANAGED_BY_LABEL,
    NAME_LABEL,
)
from batchedmodel_operator.kinds import FIELD_MANAGER, SEED_MANAGER
from cluster import ControlPlane
from support.operator_process import (
    CRD_NAME,
    PROBE_PORT,
    OperatorProcess,
    PretendSidecar,
    apply,
    get,
    grant_rights,
    install_crd,
    operator,
    run_pods,
    set_pod_status,
    until,
    withdraw_rights,
)

CHILDREN = ("deployment/minilm", "service/minilm", "configmap/minilm-batching")
_NUMBERS = itertools.count(1)
SIMULATED: dict[str, Any] = {"model": {"handler": "simulated"}}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    install_crd(control_plane)
    grant_rights(control_plane)
    yield control_plane
    withdraw_rights(control_plane)


@pytest.fixture(scope="module")
def running(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all tests that leave it alone."""
    with operator(plane, tmp_path_factory.mktemp("operator")) as process:
        yield process


@pytest.fixture
def team(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator["Team"]:
    """A namespace for one test."""
    words = re.findall("[a-z]+", request.node.name.removeprefix("test_").lower())
    name = f"{'-'.join(words)[:40].strip('-')}-{next(_NUMBERS)}"
    team = Team(plane, name)
    # Every pod of these tests has to meet the strictest standard.
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield team
    plane.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def sidecar() -> Iterator[PretendSidecar]:
    pretend = PretendSidecar("127.0.65.1")
    yield pretend
    pretend.close()


class Team:
    """A namespace with one BatchedModel in it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace

    def write(self, spec: Mapping[str, Any]) -> None:
        """A person applies the manifest."""
        head = {"apiVersion": "batchedmodel.dev/v1alpha1", "kind": "BatchedModel"}
        metadata = {"name": "minilm", "namespace": self.namespace}
        apply(self.plane, {**head, "metadata": metadata, "spec": spec})

    def get(self, *words: str) -> Any:
        return get(self.plane, self.namespace, *words)

    def patch(self, what: str, change: Mapping[str, Any], *words: str) -> None:
        self.plane.kubectl(
            *("patch", what, f"--namespace={self.namespace}", "--type=merge"),
            *("--patch", json.dumps(change), *words),
        )

    def has_all(self, *children: str) -> bool:
        return all(self.get(child) is not None for child in children or CHILDREN)

    def condition(self, name: str) -> tuple[str, str]:
        """A condition's status and reason, once it speaks of the present generation."""
        model = self.get("batchedmodel/minilm") or {}
        for one in model.get("status", {}).get("conditions", []):
            if one["type"] == name and one["observedGeneration"] == model["metadata"]["generation"]:
                return one["status"], one["reason"]
        return "", ""

    def until(self, condition: str, status: str, reason: str, seconds: float = 15) -> None:
        model = ""
        try:
            until("", lambda: self.condition(condition) == (status, reason), seconds)
        except AssertionError:
            model = json.dumps((self.get("batchedmodel/minilm") or {}).get("status"), indent=1)
            raise AssertionError(f"{condition} is not {status}/{reason}: {model}") from None

    def left(self) -> list[str]:
        """Whatever stands in the namespace that Kubernetes has not put there by itself."""
        kinds = "deployments,replicasets,pods,services,configmaps,hpa"
        names = [f"{one['kind']}/{one['metadata']['name']}" for one in self.get(kinds)["items"]]
        return [name for name in names if name != "ConfigMap/kube-root-ca.crt"]

    def versions(self) -> dict[str, str]:
        """What every write to the BatchedModel or a child would change."""
        everything = (*CHILDREN, "hpa/minilm", "batchedmodel/minilm")
        found = {name: self.get(name) for name in everything}
        return {
            name: body["metadata"]["resourceVersion"]
            for name, body in found.items()
            if body is not None
        }

    def written(self) -> dict[str, Any]:
        """What every write of the operator to the BatchedModel or a child would change.

        Its own entry among the managers has the second of its last write that changed anything.
        Others may write meanwhile: a Deployment's controller brings its status up to date.
        """
        everything = (*CHILDREN, "hpa/minilm", "batchedmodel/minilm")
        found = {name: (self.get(name, "--show-managed-fields") or {}) for name in everything}
        return {
            name: (
                body["metadata"]["uid"],
                body["metadata"].get("generation"),
                [
                    entry
                    for entry in body["metadata"]["managedFields"]
                    if entry["manager"] in (FIELD_MANAGER, SEED_MANAGER)
                ],
            )
            for name, body in found.items()
            if body
        }

    def quiet(self) -> dict[str, str]:
        """The versions, once nothing has changed for a while."""
        before = self.versions()
        for _ in range(20):
            time.sleep(1.5)
            now = self.versions()
            if now == before:
                return now
            before = now
        raise AssertionError("something goes on writing")


def test_a_model_gets_its_children_and_they_go_with_it(
    running: OperatorProcess, team: Team
) -> None:
    team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
    until("all children are there", lambda: team.has_all(*CHILDREN, "hpa/minilm"))
    uid = team.get("batchedmodel/minilm")["metadata"]["uid"]
    for child in (*CHILDREN, "hpa/minilm"):
        (owner,) = team.get(child)["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    metadata = team.get("batchedmodel/minilm")["metadata"]
    assert "finalizers" not in metadata
    assert set(metadata["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
    team.plane.kubectl("delete", "batchedmodel/minilm", f"--namespace={team.namespace}")
    # The garbage collector learns of a new definition only every 30 s.
    until("nothing is left", lambda: not team.left(), 90)


def test_ready_follows_the_pods(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write({**SIMULATED, "replicas": 2})
    team.until("Ready", "False", "ModelLoading")
    sidecar.settings_hash = _settings(team)
    until("both pods are there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 2)
    team.until("Ready", "True", "Serving")
    team.until("Progressing", "False", "Complete")
    assert team.condition("Reconciled") == ("True", "Applied")
    assert team.condition("Available") == ("True", "MinimumReplicasAvailable")
    status = team.get("batchedmodel/minilm")["status"]
    assert (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (2, 2, 2)
    assert status["url"] == f"http://minilm.{team.namespace}.svc"
    assert status["effective"]["batching"] == {"maxQueueSize": 2048}
    pods = team.get("pods")["items"]
    assert not any(
        BATCHING_HASH_ANNOTATION in pod["metadata"].get("annotations", {}) for pod in pods
    ), "pods that have the settings anyway are left alone"


def test_a_batching_edit_reaches_pods_without_touching_their_template(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SIMULATED)
    until("the child is there", team.has_all)
    sidecar.settings_hash = _settings(team)
    until("the pod is there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 1)
    team.until("Progressing", "False", "Complete")
    generation = team.get("deployment/minilm")["metadata"]["generation"]
    (pod,) = team.get("pods")["items"]

    team.write({**SIMULATED, "batching": {"maxBatchSize": 8, "requestTimeoutSeconds": 100}})
    team.until("Progressing", "True", "BatchSettingsRollingOut")
    wanted = _settings(team)
    assert wanted != sidecar.settings_hash
    until(
        "the pod is told",
        lambda: (
            team.get(f"pod/{pod['metadata']['name']}")["metadata"]
            .get("annotations", {})
            .get(BATCHING_HASH_ANNOTATION, "")
            .startswith(wanted)
        ),
    )
    sidecar.settings_hash = wanted
    team.until("Progressing", "False", "Complete")
    assert team.get("deployment/minilm")["metadata"]["generation"] == generation
    (still,) = team.get("pods")["items"]
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]


def test_what_people_do_to_children_is_repaired(running: OperatorProcess, team: Team) -> None:
    team.write({"model": {"handler": "simulated", "resources": {"limits": {"cpu": "1000m"}}}})
    until("all children are there", team.has_all)
    team.quiet()
    team.patch("service/minilm", {"spec": {"ports": [{"port": 80, "targetPort": 1}]}})
    team.patch("configmap/minilm-batching", {"data": {"batching.json": "{}"}})
    team.plane.kubectl("scale", "deployment/minilm", "--replicas=4", f"-n={team.namespace}")
    until("the port is back", lambda: _target_port(team) == DATA_PORT)
    until("the settings are back", lambda: team.get(CHILDREN[2])["data"]["batching.json"] != "{}")
    until("the replicas are back", lambda: team.get(CHILDREN[0])["spec"]["replicas"] == 1)
    for child in ("service/minilm", "deployment/minilm"):
        _labels_are_repaired(team, child)
    for child in CHILDREN:
        team.plane.kubectl("delete", child, f"--namespace={team.namespace}", "--wait=false")
    until("all are made anew", team.has_all)
    team.quiet()


def test_a_strangers_object_is_never_taken_over(running: OperatorProcess, team: Team) -> None:
    stranger = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "minilm", "namespace": team.namespace},
        "spec": {"ports": [{"port": 4711}]},
    }
    apply(team.plane, stranger)
    team.write(SIMULATED)
    team.until("Reconciled", "False", "NameConflict")
    until("the others are made", lambda: team.has_all("deployment/minilm"))
    kept = team.get("service/minilm")
    assert kept["spec"]["ports"][0]["port"] == 4711
    assert "ownerReferences" not in kept["metadata"]


def test_beside_an_autoscaler_the_replicas_are_never_written(
    running: OperatorProcess, team: Team
) -> None:
    team.write({**SIMULATED, "replicas": 3})
    until("there are 3", lambda: _replicas(team) == 3)
    scaled = {**SIMULATED, "autoscaling": {"minReplicas": 1, "maxReplicas": 9}}
    team.write(scaled)
    until("the autoscaler is there", lambda: team.has_all("hpa/minilm"))
    team.quiet()
    assert _replicas(team) == 3, "an autoscaler begins where the person left"
    team.plane.kubectl("scale", "deployment/minilm", "--replicas=5", f"-n={team.namespace}")
    for number in range(20):
        # Each is a reconcile that applies something.
        team.write({**scaled, "batching": {"maxBatchSize": number + 1}})
        time.sleep(0.3)
        assert _replicas(team) == 5
    team.write({**scaled, "drain": {"delaySeconds": 1}})  # a new pod template
    team.quiet()
    assert _replicas(team) == 5
    team.write({**SIMULATED, "replicas": 2})
    until("the person has it again", lambda: _replicas(team) == 2)
    until("the autoscaler is gone", lambda: not team.has_all("hpa/minilm"))


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (
            "ImagePullFailed",
            {
                "containerStatuses": [
                    {
                        "name": "model",
                        "image": "registry.example/none:1",
                        "imageID": "",
                        "ready": False,
                        "restartCount": 0,
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}},
                    }
                ]
            },
        ),
        (
            "InsufficientAccelerator",
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                    }
                ]
            },
        ),
    ],
)
def test_why_a_pod_does_not_start_stands_in_ready(
    running: OperatorProcess, team: Team, reason: str, status: Mapping[str, Any]
) -> None:
    team.write({**SIMULATED, "accelerator": {}})
    team.until("Ready", "False", "ModelLoading")
    (pod,) = team.get("pods")["items"]
    began = time.monotonic()
    set_pod_status(team.plane, team.namespace, pod["metadata"]["name"], status)
    team.until("Ready", "False", reason)
    assert time.monotonic() - began < 5


def test_a_model_that_cannot_be_loaded_stands_in_ready(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SIMULATED)
    until("the child is there", team.has_all)
    sidecar.settings_hash = _settings(team)
    until(
        "the pod is there",
        lambda: len(run_pods(team.plane, team.namespace, sidecar, loading=True)) == 1,
    )
    team.until("Ready", "False", "ModelLoading")
    team.quiet()
    # No event tells of it.
    sidecar.model_startup = "the model is FAILED: no file: model.bin"
    team.until("Ready", "False", "ModelFailed")
    team.quiet()


def test_a_quota_that_has_no_room_is_named(running: OperatorProcess, team: Team) -> None:
    metadata = {"name": "none", "namespace": team.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    apply(team.plane, {**quota, "spec": {"hard": {"pods": "0"}}})
    until("the quota counts", lambda: "used" in team.get("quota/none").get("status", {}))
    team.write(SIMULATED)
    team.until("Ready", "False", "QuotaExceeded")
    assert team.condition("Reconciled") == ("True", "Applied")


def test_an_object_that_kubernetes_refuses_is_named_and_the_last_good_stays(
    running: OperatorProcess, team: Team
) -> None:
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")
    before = team.get("deployment/minilm")["spec"]["template"]
    team.write({**SIMULATED, "pod": {"affinity": {"nodeAffinity": "nonsense"}}})
    team.until("Reconciled", "False", "InvalidPodTemplate")
    assert team.condition("Ready") == ("False", "ReconcileFailed")
    assert team.get("deployment/minilm")["spec"]["template"] == before
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")


def test_a_namespace_deleted_in_the_middle_goes_away(running: OperatorProcess, team: Team) -> None:
    team.write({**SIMULATED, "replicas": 3})
    until("the deployment is there", lambda: team.has_all("deployment/minilm"))
    team.plane.kubectl(
        "delete", "namespace", team.namespace, "--wait=true", "--timeout=50s", timeout_s=60
    )
    assert running.alive()


def test_the_process_answers_probes_and_stays_small(running: OperatorProcess) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{PROBE_PORT}/healthz", timeout=5) as answer:
        assert json.loads(answer.read())["longest_look_seconds"] < 60
    assert running.memory_megabytes() < 150
    print(f"the operator's memory: {running.memory_megabytes():.0f} MB")  # noqa: T201


def test_a_restart_writes_nothing_and_misses_nothing(
    running: OperatorProcess, plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
    until("all children are there", lambda: team.has_all(*CHILDREN, "hpa/minilm"))
    # What the operator says of the numbers changes only as long as they do.
    team.until("Ready", "False", "ModelLoading")
    until("the pod is counted", lambda: _updated(team) == 1)
    team.quiet()
    before = team.written()
    assert before.keys() == {*CHILDREN, "hpa/minilm", "batchedmodel/minilm"}
    assert all(entries for _, _, entries in before.values())
    # A second operator does what a restarted one does, while the first one goes on.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("support.operator_process.PROBE_PORT", PROBE_PORT + 1)
        with operator(plane, tmp_path) as second:
            until("it has looked", lambda: f"{team.namespace}/minilm: applied" in second.log())
            team.quiet()
            assert team.written() == before
            assert second.stop() == 0
    assert "Traceback" not in second.log()
    team.patch("configmap/minilm-batching", {"data": {"batching.json": "{}"}})
    until("a write would have shown", lambda: team.written() != before)


def test_a_definition_that_goes_and_comes_back_is_survived(
    plane: ControlPlane, team: Team, running: OperatorProcess
) -> None:
    team.write(SIMULATED)
    until("the deployment is there", lambda: team.has_all("deployment/minilm"))
    plane.kubectl("delete", f"crd/{CRD_NAME}", "--timeout=40s")
    until("the children go too", lambda: not team.has_all("deployment/minilm"), 40)
    time.sleep(3)
    assert running.alive()
    install_crd(plane)
    team.write(SIMULATED)
    until("the deployment is there again", lambda: team.has_all("deployment/minilm"), 40)
    assert running.alive()


def test_an_api_server_that_is_away_for_a_while_is_survived(
    plane: ControlPlane, team: Team, running: OperatorProcess
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    plane.stop_program("kube-apiserver")
    time.sleep(3)
    plane.start_program("kube-apiserver")
    team.write({**SIMULATED, "batching": {"maxBatchSize": 7}})
    until("the edit is applied", lambda: '"max_batch_size": 7' in _file(team), 60)
    assert running.alive()


def _settings(team: Team) -> str:
    return settings_from_json(_file(team)).digest()


def _labels_are_repaired(team: Team, child: str) -> None:
    changes = (
        (f"{NAME_LABEL}=other", "--overwrite"),
        (f"{NAME_LABEL}-",),
        # Now it leaves what is watched.
        (f"{NAME_LABEL}-", f"{MANAGED_BY_LABEL}-"),
    )
    for change in changes:
        team.plane.kubectl("label", child, *change, f"--namespace={team.namespace}")
        until(f"{change} is undone", lambda: _name_label(team, child) == "minilm", 10)


def _updated(team: Team) -> int:
    model = team.get("batchedmodel/minilm") or {}
    return int(model.get("status", {}).get("updatedReplicas", 0))


def _name_label(team: Team, child: str) -> str | None:
    found = team.get(child) or {"metadata": {}}
    label: str | None = found["metadata"].get("labels", {}).get(NAME_LABEL)
    return label


def _target_port(team: Team) -> int:
    return int(team.get("service/minilm")["spec"]["ports"][0]["targetPort"])


def _file(team: Team) -> str:
    text: str = team.get("configmap/minilm-batching")["data"]["batching.json"]
    return text


def _replicas(team: Team) -> int:
    deployment = team.get("deployment/minilm")
    return -1 if deployment is None else int(deployment["spec"]["replicas"])
