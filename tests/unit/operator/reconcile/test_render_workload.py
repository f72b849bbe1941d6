"""How pods are replaced, protected, placed, scaled and reached, as the manifests say."""

from typing import Any

import pytest

from batchedmodel_kube.manifest.workload import ScalingVia
from batchedmodel_operator import render
from batchedmodel_operator.observed.effective import needs_disruption_budget, scaling_target
from batchedmodel_operator.rollout import Mode
from support.operator_world import IMAGES, SIMULATED
from support.rendered import (
    containers_of,
    deployment_of,
    environment_of,
    fetch_of,
    from_hub,
    mounts_of,
    pod_of,
    read_model,
    volumes_of,
)


@pytest.mark.parametrize(
    ("rollout", "surge", "in_place"),
    [
        ({}, ("25%", 0), (0, 1)),
        ({"maxSurge": 2}, (2, 0), (0, 1)),
        ({"maxUnavailable": "50%"}, ("25%", "50%"), (0, "50%")),
        ({"maxSurge": "10%", "maxUnavailable": 3}, ("10%", 3), (0, 3)),
    ],
    ids=str,
)
def test_what_is_not_said_of_a_rollout_lets_it_go_on(
    rollout: dict[str, Any], surge: tuple[Any, Any], in_place: tuple[Any, Any]
) -> None:
    for mode, (beside, missing) in ((Mode.SURGE, surge), (Mode.IN_PLACE, in_place)):
        spec = deployment_of({**SIMULATED, "rollout": rollout}, mode)["spec"]
        budget = {"maxSurge": beside, "maxUnavailable": missing}
        assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": budget}


def test_of_accelerators_one_is_asked_for_beside_those_in_use() -> None:
    spec = deployment_of({**SIMULATED, "accelerator": {}}, Mode.SURGE)["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_pod_that_is_watched_for_long_does_not_count_as_stuck() -> None:
    usual, watched = (
        deployment_of({**SIMULATED, "rollout": rollout})["spec"]
        for rollout in ({}, {"minReadySeconds": 3600, "revisionHistoryLimit": 20})
    )
    assert (watched["minReadySeconds"], watched["revisionHistoryLimit"]) == (3600, 20)
    assert watched["progressDeadlineSeconds"] == usual["progressDeadlineSeconds"] + 3600


def test_by_the_baseline_the_model_is_who_its_image_says_and_the_others_have_no_rights() -> None:
    spec = {**from_hub(), "security": {"profile": "Baseline"}}
    pod = pod_of(spec)
    assert "runAsUser" not in pod["securityContext"]
    assert "runAsNonRoot" not in pod["securityContext"]
    assert pod["securityContext"]["fsGroup"] == 65532, "both can use the socket"
    batcher, model = containers_of(spec)
    assert model["securityContext"] == {}
    for container in (batcher, fetch_of(spec)):
        context = container["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 65532)
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True


def test_what_a_pod_carries_is_in_its_template_and_selects_nothing() -> None:
    carried = {
        "labels": {"team": "search"},
        "annotations": {"example.com/scrape": "no"},
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    mount = {"name": "data", "mountPath": "/data"}
    spec = {"model": {"handler": "simulated", "volumeMounts": [mount]}, "pod": carried}
    body = deployment_of(spec)["spec"]
    metadata = body["template"]["metadata"]
    assert (
        metadata["labels"].items() >= {"team": "search", "batchedmodel.dev/name": "minilm"}.items()
    )
    assert metadata["annotations"]["example.com/scrape"] == "no"
    assert body["selector"] == {"matchLabels": {"batchedmodel.dev/name": "minilm"}}
    assert volumes_of(spec)["data"] == {"name": "data", "emptyDir": {}}
    batcher, model = containers_of(spec)
    assert mounts_of(model)["data"] == mount
    assert "data" not in mounts_of(batcher)


def test_pods_are_spread_over_zones_and_nodes_unless_said_otherwise() -> None:
    selector = {"matchLabels": {"batchedmodel.dev/name": "minilm"}}
    usual = pod_of(SIMULATED)["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in usual] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    assert {one["whenUnsatisfiable"] for one in usual} == {"ScheduleAnyway"}
    assert all(one["labelSelector"] == selector for one in usual)
    assert all(one["matchLabelKeys"] == ["pod-template-hash"] for one in usual)
    racks = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    own = {"matchLabels": {"team": "search"}}
    given = [racks, racks | {"labelSelector": own}]
    spread = pod_of({**SIMULATED, "pod": {"topologySpreadConstraints": given}})
    assert spread["topologySpreadConstraints"] == [
        racks | {"labelSelector": selector},
        racks | {"labelSelector": own},
    ]
    none = pod_of({**SIMULATED, "pod": {"topologySpreadConstraints": []}})
    assert "topologySpreadConstraints" not in none


_PRODUCT = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4", "NVIDIA-T4"]}


def _of_products(affinity: dict[str, Any]) -> Any:
    accelerator = {"productLabels": ["NVIDIA-L4", "NVIDIA-T4"]}
    return pod_of({**SIMULATED, "accelerator": accelerator, "pod": {"affinity": affinity}})[
        "affinity"
    ]


def _required(*terms: object) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}


def test_of_several_products_any_will_do() -> None:
    wanted = {"nodeAffinity": _required({"matchExpressions": [_PRODUCT]})}
    assert _of_products({}) == wanted
    assert "affinity" not in pod_of({**SIMULATED, "accelerator": {}})


def test_a_product_is_asked_for_beside_whatever_else_nodes_must_be() -> None:
    zone = {"key": "zone", "operator": "Exists"}
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    node = _required({"matchExpressions": [zone]}, fields) | {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]
    }
    found = _of_products({"nodeAffinity": node, "podAffinity": {}})
    terms = _required(
        {"matchExpressions": [zone, _PRODUCT]}, {**fields, "matchExpressions": [_PRODUCT]}
    )
    assert found == {"nodeAffinity": node | terms, "podAffinity": {}}


def test_the_sidecar_is_of_the_manifests_image_and_says_as_much_as_it_should() -> None:
    own = {"image": "mirror.example/sidecar:9", "logLevel": "debug"}
    batcher, model = containers_of({**SIMULATED, "sidecar": own})
    assert batcher["image"] == "mirror.example/sidecar:9"
    assert environment_of(batcher)["BATCHEDMODEL_LOG_LEVEL"] == "debug"
    assert environment_of(model)["BATCHEDMODEL_LOG_LEVEL"] == "info"
    assert containers_of(SIMULATED)[0]["image"] == IMAGES.sidecar


def test_containers_of_the_manifest_run_between_the_sidecars_start_and_the_model() -> None:
    fill = {"name": "fill", "image": "fill:1", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}
    logs = {"name": "logs", "image": "logs:1", "restartPolicy": "Always"}
    spec = {
        **from_hub(),
        "pod": {"initContainers": [fill, logs], "volumes": [{"name": "a", "emptyDir": {}}]},
    }
    containers = pod_of(spec)["initContainers"]
    names = [container["name"] for container in containers]
    assert names == ["fetch-model", "batcher", "fill", "logs"]
    assert {name: containers[2][name] for name in fill} == fill
    assert containers[3]["restartPolicy"] == "Always"


def test_a_rollout_may_take_longer_where_others_run_before_the_model() -> None:
    usual, longer = (
        deployment_of({**SIMULATED, "pod": pod})["spec"]["progressDeadlineSeconds"]
        for pod in ({}, {"initContainers": [{"name": "fill", "image": "fill:1"}]})
    )
    assert longer == usual + 3600


@pytest.mark.parametrize("own", [{}, {"runAsUser": 1000}, {"capabilities": {"add": ["SYS_NICE"]}}])
def test_what_a_container_says_of_its_rights_stands_above_the_profile(own: dict[str, Any]) -> None:
    fill = {"name": "fill", "image": "fill:1", "securityContext": own}
    model = {"handler": "simulated", "securityContext": own}
    for profile, usual in (
        ("Restricted", containers_of(SIMULATED)[1]["securityContext"]),
        ("Baseline", {}),
    ):
        spec = {"model": model, "pod": {"initContainers": [fill]}, "security": {"profile": profile}}
        pod = pod_of(spec)
        for container in (pod["containers"][0], pod["initContainers"][-1]):
            assert container["securityContext"] == usual | own
        batcher = pod["initContainers"][0]
        assert batcher["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_service_has_the_annotations_of_the_manifest() -> None:
    annotations = {"example.com/scheme": "internal"}
    model, spec = read_model({**SIMULATED, "service": {"annotations": annotations}})
    assert render.service(model, spec)["metadata"]["annotations"] == annotations


def test_a_budget_protects_pods_that_serve_and_no_others() -> None:
    model, spec = read_model({**SIMULATED, "replicas": 2, "disruption": {"maxUnavailable": "50%"}})
    assert render.disruption_budget(model, spec)["spec"] == {
        "selector": {"matchLabels": {"batchedmodel.dev/name": "minilm"}},
        "maxUnavailable": "50%",
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


@pytest.mark.parametrize(
    ("more", "needed"),
    [
        ({}, False),
        ({"replicas": 2}, True),
        ({"autoscaling": {"maxReplicas": 1}}, False),
        ({"autoscaling": {"maxReplicas": 2}}, True),
        ({"replicas": 2, "disruption": {"podDisruptionBudget": "Never"}}, False),
    ],
    ids=str,
)
def test_a_budget_is_for_models_of_two_pods_or_more(more: dict[str, Any], needed: bool) -> None:
    _, spec = read_model({**SIMULATED, **more})
    assert needs_disruption_budget(spec) is needed


def test_a_profile_says_how_eagerly_an_autoscaler_follows() -> None:
    behaviors = {
        profile: _autoscaler({"maxReplicas": 9, "profile": profile})["behavior"]
        for profile in ("Conservative", "Balanced", "Fast")
    }
    calm = [one["scaleDown"]["stabilizationWindowSeconds"] for one in behaviors.values()]
    assert calm == [900, 300, 120]
    assert behaviors["Balanced"] == _autoscaler({"maxReplicas": 9})["behavior"]
    assert behaviors["Balanced"]["scaleUp"]["policies"] == [
        {"type": "Percent", "value": 100, "periodSeconds": 60},
        {"type": "Pods", "value": 2, "periodSeconds": 60},
    ]


def test_what_a_hand_could_set_beside_it_is_said() -> None:
    assert deployment_of(SIMULATED)["spec"]["paused"] is False
    for given in ({}, {"behavior": {"scaleUp": {"stabilizationWindowSeconds": 5}}}):
        behavior = _autoscaler({"maxReplicas": 3, **given})["behavior"]
        assert {one["selectPolicy"] for one in behavior.values()} == {"Max"}
    own = {"scaleDown": {"selectPolicy": "Disabled"}}
    behavior = _autoscaler({"maxReplicas": 3, "behavior": own})["behavior"]
    assert behavior["scaleDown"] == own["scaleDown"]


def test_a_behaviour_of_ones_own_stands_above_the_profile_in_its_direction() -> None:
    own = {"stabilizationWindowSeconds": 60}
    scaling = {"maxReplicas": 3, "profile": "Fast", "behavior": {"scaleDown": own}}
    behavior = _autoscaler(scaling)["behavior"]
    assert behavior["scaleDown"] == {**own, "selectPolicy": "Max"}
    fast = _autoscaler({"maxReplicas": 3, "profile": "Fast"})["behavior"]
    assert behavior["scaleUp"] == fast["scaleUp"]


def test_placement_is_passed_on() -> None:
    placement = {
        "nodeSelector": {"zone": "a"},
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "schedulerName": "gang",
        "serviceAccountName": "models",
        "automountServiceAccountToken": True,
        "imagePullSecrets": ["hub"],
    }
    pod = pod_of({**SIMULATED, "pod": placement})
    expected = {**placement, "imagePullSecrets": [{"name": "hub"}]}
    assert {name: pod[name] for name in expected} == expected


def _autoscaler(scaling: dict[str, Any]) -> dict[str, Any]:
    model, spec = read_model({**SIMULATED, "autoscaling": scaling})
    assert spec.autoscaling is not None
    body: dict[str, Any] = render.autoscaler(model, spec, spec.autoscaling)["spec"]
    return body


def test_the_autoscaler_follows_the_metric_of_the_model() -> None:
    load = _autoscaler({"maxReplicas": 3})
    (metric,) = load["metrics"]
    assert metric["object"]["describedObject"]["kind"] == "BatchedModel"
    assert metric["object"]["metric"]["name"] == "batchedmodel_required_replicas"
    assert metric["object"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert (load["minReplicas"], load["maxReplicas"]) == (1, 3)
    queue = _autoscaler({"maxReplicas": 3, "metric": "QueueLength"})
    assert queue["metrics"][0]["object"]["metric"]["name"] == "batchedmodel_queue_length"
    assert queue["metrics"][0]["object"]["target"]["averageValue"] == "32"


@pytest.mark.parametrize("by_chart", [True, False])
def test_an_external_metric_is_selected_by_the_models_name(by_chart: bool) -> None:
    told = {} if by_chart else {"via": "ExternalMetrics"}
    model, spec = read_model({**SIMULATED, "autoscaling": {"maxReplicas": 3, **told}})
    assert spec.autoscaling is not None
    via = ScalingVia.EXTERNAL_METRICS if by_chart else ScalingVia.CUSTOM_METRICS
    (metric,) = render.autoscaler(model, spec, spec.autoscaling, via)["spec"]["metrics"]
    assert metric == {
        "type": "External",
        "external": {
            "metric": {
                "name": "batchedmodel_required_replicas",
                "selector": {"matchLabels": {"model": model.key.name}},
            },
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    }


def test_a_manifest_that_names_the_custom_api_stands_above_the_chart() -> None:
    scaling = {"maxReplicas": 3, "via": "CustomMetrics"}
    model, spec = read_model({**SIMULATED, "autoscaling": scaling})
    assert spec.autoscaling is not None
    via = ScalingVia.EXTERNAL_METRICS
    (metric,) = render.autoscaler(model, spec, spec.autoscaling, via)["spec"]["metrics"]
    assert metric["type"] == "Object"


@pytest.mark.parametrize(
    ("scaling", "name", "average"),
    [
        ({"metric": "Concurrency"}, "batchedmodel_concurrency", "32"),
        ({"metric": "Concurrency", "targetConcurrency": 9}, "batchedmodel_concurrency", "9"),
        ({"metric": "QueueTime"}, "batchedmodel_queue_time_seconds", "500m"),
        (
            {"metric": "QueueTime", "targetQueueTimeMilliseconds": 2000},
            "batchedmodel_queue_time_seconds",
            "2",
        ),
    ],
    ids=str,
)
def test_a_gauge_is_divided_by_what_is_right_for_one_pod(
    scaling: dict[str, Any], name: str, average: str
) -> None:
    (metric,) = _autoscaler({"maxReplicas": 3, **scaling})["metrics"]
    assert metric["object"]["metric"]["name"] == name
    assert metric["object"]["target"] == {"type": "AverageValue", "averageValue": average}


def test_rows_outstanding_are_divided_by_what_all_workers_of_a_pod_hold() -> None:
    _, spec = read_model(
        {
            "model": {"protocol": "V2", "image": "mine"},
            "batching": {"maxBatchSize": 16, "maxConcurrentBatches": 4},
            "autoscaling": {"maxReplicas": 3, "metric": "Concurrency"},
        }
    )
    assert spec.autoscaling is not None
    assert scaling_target(spec, spec.autoscaling) == ("targetConcurrency", 64)


def test_cpu_is_that_of_the_models_container() -> None:
    resources = {"requests": {"cpu": "2"}}
    model, spec = read_model(
        {
            "model": {"handler": "simulated", "resources": resources},
            "autoscaling": {"maxReplicas": 3, "metric": "CPU", "targetUtilizationPercent": 60},
        }
    )
    assert spec.autoscaling is not None
    (metric,) = render.autoscaler(model, spec, spec.autoscaling)["spec"]["metrics"]
    target = {"type": "Utilization", "averageUtilization": 60}
    used = {"name": "cpu", "container": "model", "target": target}
    assert metric == {"type": "ContainerResource", "containerResource": used}


def test_the_service_leads_to_the_sidecars_only() -> None:
    model, spec = read_model({**SIMULATED, "service": {"port": 81, "type": "NodePort"}})
    body = render.service(model, spec)["spec"]
    assert body["type"] == "NodePort"
    assert body["selector"] == {"batchedmodel.dev/name": "minilm"}
    (port,) = body["ports"]
    assert (port["port"], port["targetPort"]) == (81, 8000)


def test_the_pod_meets_the_restricted_standard() -> None:
    pod = pod_of(SIMULATED)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in containers_of(SIMULATED):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert containers_of(SIMULATED)[0]["securityContext"]["readOnlyRootFilesystem"] is True
