"""What the operator makes of a model at a real API server, and keeps as it made it."""

import json
import time

from batchedmodel_kube.names import (
    BATCHING_HASH_ANNOTATION,
    DATA_PORT,
    MANAGED_BY_LABEL,
    NAME_LABEL,
)
from cluster import ControlPlane
from support.operator_process import OperatorProcess, PretendSidecar, run_pods
from support.operator_team import CHILDREN, SIMULATED, Team
from support.plane import until


def test_a_model_gets_its_children(running: OperatorProcess, team: Team) -> None:
    team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
    wanted = (*CHILDREN, "hpa/minilm", "pdb/minilm")
    until("all children are there", lambda: team.has_all(*wanted))
    uid = team.get("batchedmodel/minilm")["metadata"]["uid"]
    for child in wanted:
        (owner,) = team.get(child)["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    metadata = team.get("batchedmodel/minilm")["metadata"]
    assert "finalizers" not in metadata
    assert set(metadata["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}


def test_pods_that_fetch_or_mount_their_files_are_admitted(
    running: OperatorProcess, team: Team
) -> None:
    repository = {"repo": "us/small", "tokenSecretRef": {"name": "hub"}, "cacheClaimName": "models"}
    team.write({"model": {"handler": "hf", "source": {"huggingFace": repository}}})
    until("a pod is there", lambda: len(team.get("pods")["items"]) == 1)
    (pod,) = team.get("pods")["items"]
    names = [container["name"] for container in pod["spec"]["initContainers"]]
    assert names == ["fetch-model", "batcher"]
    team.until("Reconciled", "True", "Applied")

    volume = {"claimName": "models", "subPath": "minilm"}
    team.write({"model": {"handler": "hf", "source": {"volume": volume}}})

    def mounts() -> list[str]:
        containers = team.get("deployment/minilm")["spec"]["template"]["spec"]["containers"]
        return [mount.get("subPath", "") for mount in containers[0]["volumeMounts"]]

    until("the volume is mounted", lambda: "minilm" in mounts())
    team.until("Reconciled", "True", "Applied")


def test_ready_follows_the_pods(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write({**SIMULATED, "replicas": 2})
    team.until("Ready", "False", "ModelLoading")
    sidecar.settings_hash = team.settings()
    until("both pods are there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 2)
    team.until("Ready", "True", "Serving")
    team.until("Progressing", "False", "Complete")
    assert team.condition("Reconciled") == ("True", "Applied")
    assert team.condition("Available") == ("True", "MinimumReplicasAvailable")
    status = team.get("batchedmodel/minilm")["status"]
    assert (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (2, 2, 2)
    assert status["url"] == f"http://minilm.{team.namespace}.svc"
    assert status["effective"]["batching"] == {"maxBatchSize": 32, "maxQueueSize": 2048}
    pods = team.get("pods")["items"]
    assert not any(
        BATCHING_HASH_ANNOTATION in pod["metadata"].get("annotations", {}) for pod in pods
    ), "pods that have the settings anyway are left alone"


def test_a_batching_edit_reaches_pods_without_touching_their_template(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SIMULATED)
    until("the child is there", team.has_all)
    sidecar.settings_hash = team.settings()
    until("the pod is there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 1)
    team.until("Progressing", "False", "Complete")
    generation = team.get("deployment/minilm")["metadata"]["generation"]
    (pod,) = team.get("pods")["items"]

    team.write({**SIMULATED, "batching": {"maxBatchSize": 8, "requestTimeoutSeconds": 100}})
    team.until("Progressing", "True", "BatchSettingsRollingOut")
    wanted = team.settings()
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


def test_a_strangers_object_is_never_taken_over_and_nothing_is_made_beside_it(
    plane: ControlPlane, running: OperatorProcess, team: Team
) -> None:
    """Half a model serves nobody. Who applies a label to an object has not made it."""
    where = f"--namespace={team.namespace}"
    plane.kubectl("create", "service", "clusterip", "minilm", "--tcp=4711", where)
    metadata = {"name": "minilm", "namespace": team.namespace, "labels": {"seen": "yes"}}
    labels = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    how = ("--server-side", "--field-manager=labeller", "--filename=-")
    plane.kubectl("apply", *how, stdin=json.dumps(labels))
    kept = team.get("service/minilm")
    team.write(SIMULATED)
    team.until("Reconciled", "False", "NameConflict")
    said = team.message("Reconciled")
    assert "Service minilm exists (it was made by kubectl-create)" in said
    assert team.left() == ["services/minilm"]
    assert team.get("service/minilm") == kept
    plane.kubectl("delete", "service/minilm", where)
    # It was nobody's, so its end is seen at the next look only.
    team.write({**SIMULATED, "replicas": 2})
    team.until("Reconciled", "True", "Applied")
    assert team.has_all()


def test_a_template_that_somebody_made_his_own_is_not_taken_back(
    running: OperatorProcess, team: Team
) -> None:
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")
    (name,) = (one["metadata"]["name"] for one in team.get("controllerrevisions")["items"])
    what = f"controllerrevision/{name}"
    team.patch(what, {"metadata": {"labels": None, "ownerReferences": None}})
    team.until("Reconciled", "False", "NameConflict")
    assert name in team.message("Reconciled")
    assert "ownerReferences" not in team.get(what)["metadata"]


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
    until("the autoscaler is gone", lambda: team.has_none("hpa/minilm"))


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


def _target_port(team: Team) -> int:
    return int(team.get("service/minilm")["spec"]["ports"][0]["targetPort"])


def _replicas(team: Team) -> int:
    deployment = team.get("deployment/minilm")
    return -1 if deployment is None else int(deployment["spec"]["replicas"])


def _name_label(team: Team, child: str) -> str | None:
    found = team.get(child) or {"metadata": {}}
    label: str | None = found["metadata"].get("labels", {}).get(NAME_LABEL)
    return label
