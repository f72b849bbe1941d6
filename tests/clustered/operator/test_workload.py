"""What a person may say of a model's pods, at a real API server with real controllers."""

import json
from functools import partial
from typing import Any

import pytest

from batchedmodel_kube.names import BATCHING_HASH_ANNOTATION, NAME_LABEL
from cluster import CommandFailed
from support.operator_process import OperatorProcess, PretendSidecar, run_pods
from support.operator_team import CHILDREN, SIMULATED, Team
from support.plane import apply, set_pod_status, until

SCALED: dict[str, Any] = {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 4}}


def test_a_suspended_model_has_no_pods_and_keeps_its_objects_and_its_url(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SCALED)
    until("all is there", lambda: team.has_all(*CHILDREN, "hpa/minilm", "pdb/minilm"))
    sidecar.settings_hash = team.settings()
    until("both pods are there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 2)
    team.until("Progressing", "False", "Complete")
    address = team.get("service/minilm")["spec"]["clusterIP"]

    team.write({**SCALED, "suspend": True})
    team.until("Ready", "False", "Suspended")
    team.until("Available", "False", "Suspended")
    until("no pod is wanted", lambda: _replicas(team) == 0)
    until("no pod is left", lambda: all(_is_going(pod) for pod in team.get("pods")["items"]))
    assert team.has_all(*CHILDREN, "hpa/minilm", "pdb/minilm")
    assert team.get("service/minilm")["spec"]["clusterIP"] == address
    status = team.get("batchedmodel/minilm")["status"]
    assert (status["url"], status["desiredReplicas"]) == (f"http://minilm.{team.namespace}.svc", 0)
    team.quiet()

    team.write(SCALED)
    until("it wakes with the fewest", lambda: _replicas(team) == 2)
    team.plane.kubectl("scale", "deployment/minilm", "--replicas=4", f"-n={team.namespace}")
    team.quiet()
    assert _replicas(team) == 4, "the number is the autoscaler's again"


def test_a_pod_with_only_the_label_is_told_nothing_and_says_nothing(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SIMULATED)
    until("its pod is there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 1)
    sidecar.settings_hash = team.settings()
    team.until("Ready", "True", "Serving")
    (own,) = team.get("pods")["items"]
    uid = team.get("deployment/minilm")["metadata"]["uid"]
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "minilm"}
    owner = {**head, "uid": uid, "controller": True}
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "stranger",
            "namespace": team.namespace,
            "labels": own["metadata"]["labels"],
            # Else the ReplicaSet would adopt it, and delete one that is too many.
            "ownerReferences": [owner],
        },
        "spec": {"containers": own["spec"]["containers"], **_strict(own)},
    }
    apply(team.plane, stranger)
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "made to fail"}}
    fails = {"name": "model", "ready": False, "restartCount": 9, "image": "", "imageID": ""}
    status = {"phase": "Pending", "containerStatuses": [{**fails, "state": waiting}]}
    set_pod_status(team.plane, team.namespace, "stranger", status)
    team.write({**SIMULATED, "batching": {"maxBatchSize": 7}})
    until("its own pod is told", lambda: _told(team, own["metadata"]["name"]))
    team.until("Ready", "True", "Serving")
    assert team.get("batchedmodel/minilm")["status"]["replicas"] == 1
    assert not _told(team, "stranger")


def _strict(pod: dict[str, Any]) -> dict[str, Any]:
    return {part: pod["spec"][part] for part in ("securityContext", "volumes")}


def _told(team: Team, pod: str) -> bool:
    metadata = team.get(f"pod/{pod}")["metadata"]
    return BATCHING_HASH_ANNOTATION in metadata.get("annotations", {})


def test_kubectl_scales_a_model_that_nothing_else_scales(
    running: OperatorProcess, team: Team
) -> None:
    team.write(SIMULATED)
    until("there is one", lambda: _replicas(team) == 1)
    team.plane.kubectl("scale", "bm/minilm", "--replicas=3", f"-n={team.namespace}")
    until("there are three", lambda: _replicas(team) == 3)
    until("and they protect each other", lambda: team.has_all("pdb/minilm"))
    until("all are counted", lambda: _scale(team)["status"].get("replicas") == 3)
    selector = _scale(team)["status"]["selector"]
    assert selector == f"{NAME_LABEL}=minilm"
    assert len(team.get("pods", label=selector)["items"]) == 3
    team.plane.kubectl("scale", "bm/minilm", "--replicas=1", f"-n={team.namespace}")
    until("there is one again", lambda: _replicas(team) == 1)
    until("which nothing protects", lambda: team.has_none("pdb/minilm"))


def test_a_budget_holds_back_the_second_eviction(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write({**SIMULATED, "replicas": 2})
    until("the budget is there", lambda: team.has_all("pdb/minilm"))
    sidecar.settings_hash = team.settings()
    until("both pods are there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 2)
    team.until("Progressing", "False", "Complete")
    until("one may go", lambda: team.get("pdb/minilm")["status"].get("disruptionsAllowed") == 1)
    first, second = (pod["metadata"]["name"] for pod in team.get("pods")["items"])
    _evict(team, first)
    with pytest.raises(CommandFailed, match="violate the pod's disruption budget"):
        _evict(team, second)


def test_a_budget_that_is_not_wanted_goes(running: OperatorProcess, team: Team) -> None:
    team.write(SCALED)
    until("the budget is there", lambda: team.has_all("pdb/minilm"))
    team.write({**SCALED, "disruption": {"podDisruptionBudget": "Never"}})
    until("it is gone", lambda: team.has_none("pdb/minilm"))


def test_every_scaling_profile_is_a_behaviour_that_kubernetes_takes(
    running: OperatorProcess, team: Team
) -> None:
    for profile, seconds in (("Fast", 120), ("Conservative", 900), ("Balanced", 300)):
        team.write({**SIMULATED, "autoscaling": {"maxReplicas": 4, "profile": profile}})
        until("the autoscaler follows", partial(_is_calm_for, team, seconds))
    team.until("Reconciled", "True", "Applied")
    team.quiet()


def test_what_is_said_of_rollout_service_and_pods_is_taken_as_it_is_written(
    running: OperatorProcess, team: Team
) -> None:
    team.write(
        {
            "model": {
                "handler": "simulated",
                "volumeMounts": [{"name": "data", "mountPath": "/d"}],
            },
            "replicas": 2,
            "rollout": {"maxSurge": "50%", "maxUnavailable": 1, "minReadySeconds": 7},
            "service": {"type": "NodePort", "annotations": {"example.com/scheme": "internal"}},
            "disruption": {"maxUnavailable": "50%"},
            "pod": {
                "labels": {"team": "search"},
                "annotations": {"example.com/scrape": "no"},
                "schedulerName": "gang",
                "automountServiceAccountToken": True,
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
                ],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        }
    )
    team.until("Reconciled", "True", "Applied")
    until("both pods are there", lambda: len(team.get("pods")["items"]) == 2)
    pod = team.get("pods")["items"][0]
    assert pod["metadata"]["labels"]["team"] == "search"
    assert pod["metadata"]["annotations"]["example.com/scrape"] == "no"
    assert pod["spec"]["schedulerName"] == "gang"
    assert [one["topologyKey"] for one in pod["spec"]["topologySpreadConstraints"]] == ["rack"]
    deployment = team.get("deployment/minilm")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": "50%", "maxUnavailable": 1}
    assert deployment["minReadySeconds"] == 7
    assert deployment["selector"] == {"matchLabels": {NAME_LABEL: "minilm"}}
    service = team.get("service/minilm")
    assert service["metadata"]["annotations"]["example.com/scheme"] == "internal"
    assert team.get("pdb/minilm")["spec"]["maxUnavailable"] == "50%"
    team.quiet()


def test_what_the_api_server_refuses_about_a_pod_is_said(
    running: OperatorProcess, team: Team
) -> None:
    mount = {"name": "cache", "mountPath": "/data", "subPath": "../a"}
    team.write({"model": {"handler": "simulated", "volumeMounts": [mount]}})
    team.until("Reconciled", "False", "InvalidPodTemplate")
    (said,) = (
        one["message"]
        for one in team.get("batchedmodel/minilm")["status"]["conditions"]
        if one["type"] == "Reconciled"
    )
    assert "volumeMounts" in said
    assert "must not contain '..'" in said


def test_a_namespace_of_the_baseline_takes_a_model_that_runs_as_root(
    running: OperatorProcess, team: Team
) -> None:
    baseline = {**SIMULATED, "security": {"profile": "Baseline"}}
    team.write(baseline)
    team.until("Ready", "False", "InvalidPodTemplate")
    team.plane.kubectl(
        *("label", "namespace", team.namespace, "--overwrite"),
        "pod-security.kubernetes.io/enforce=baseline",
    )
    # The Deployment's controller waits longer after each refusal.
    team.write({**baseline, "drain": {"delaySeconds": 1}})
    until("a pod is there", lambda: len(team.get("pods")["items"]) > 0)


def test_containers_before_the_model_and_a_user_of_ones_own_still_meet_the_standard(
    running: OperatorProcess, team: Team
) -> None:
    fill = {
        "name": "fill",
        "image": "registry.example/fill:1",
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
    }
    team.write(
        {
            "model": {"handler": "simulated", "securityContext": {"runAsUser": 1000}},
            "accelerator": {"productLabels": ["NVIDIA-L4", "NVIDIA-T4"]},
            "sidecar": {"logLevel": "debug"},
            "pod": {
                "affinity": {"podAntiAffinity": {}},
                "initContainers": [
                    fill,
                    {"name": "logs", "image": "logs:1", "restartPolicy": "Always"},
                ],
            },
        }
    )
    until("a pod is admitted", lambda: len(team.get("pods")["items"]) == 1)
    (pod,) = team.get("pods")["items"]
    names = [container["name"] for container in pod["spec"]["initContainers"]]
    assert names == ["batcher", "fill", "logs"]
    assert pod["spec"]["containers"][0]["securityContext"]["runAsUser"] == 1000
    node = pod["spec"]["affinity"]["nodeAffinity"]
    (term,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["NVIDIA-L4", "NVIDIA-T4"]
    team.until("Reconciled", "True", "Applied")
    team.quiet()


def _is_calm_for(team: Team, seconds: int) -> bool:
    autoscaler = team.get("hpa/minilm")
    if autoscaler is None:
        return False
    down = autoscaler["spec"]["behavior"]["scaleDown"]
    return bool(down["stabilizationWindowSeconds"] == seconds)


def _is_going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _scale(team: Team) -> dict[str, Any]:
    folder = f"/apis/batchedmodel.dev/v1alpha1/namespaces/{team.namespace}/batchedmodels"
    found: dict[str, Any] = json.loads(team.plane.kubectl("get", "--raw", f"{folder}/minilm/scale"))
    return found


def _evict(team: Team, pod: str) -> None:
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": team.namespace},
    }
    team.plane.kubectl(
        *("create", "--filename=-"),
        f"--raw=/api/v1/namespaces/{team.namespace}/pods/{pod}/eviction",
        stdin=json.dumps(eviction),
    )


def _replicas(team: Team) -> int:
    deployment = team.get("deployment/minilm")
    return -1 if deployment is None else int(deployment["spec"]["replicas"])
