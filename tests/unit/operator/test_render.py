"""The manifests of the children, as far as somebody relies on their details."""

from typing import Any

import pytest

from batchedmodel_contract.environment import (
    FetchSettings,
    ModelServerSettings,
    SidecarSettings,
    from_environment,
    source_from_json,
)
from batchedmodel_contract.source import Source
from batchedmodel_contract.spec import ServerProtocol, Spec
from batchedmodel_operator import render
from batchedmodel_operator.observed import Model, model_from
from support.operator_world import IMAGES, SIMULATED, manifest

FOREIGN = {"model": {"protocol": "V2", "image": "registry.example/triton:1", "port": 9001}}
PINNED = render.PinnedBatching(max_batch_size=16, drain_timeout_seconds=40)


def _read(spec: dict[str, Any]) -> tuple[Model, Spec]:
    body = manifest(spec)
    body["metadata"] |= {"uid": "6a", "generation": 1}
    model = model_from(body)
    assert model.spec is not None, model.mistakes
    return model, model.spec


def _deployment(spec: dict[str, Any]) -> dict[str, Any]:
    model, read = _read(spec)
    revision = render.revision(model, read, IMAGES)
    return render.deployment(model, read, IMAGES, revision=revision, pinned=PINNED, replicas=1)


def _pod(spec: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = _deployment(spec)["spec"]["template"]["spec"]
    return pod


def _containers(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = _pod(spec)
    batcher, (model,) = pod["initContainers"][-1], pod["containers"]
    return batcher, model


def _fetch(spec: dict[str, Any]) -> dict[str, Any]:
    """The container that fetches, which runs before all others."""
    first, batcher = _pod(spec)["initContainers"]
    assert batcher["name"] == "batcher"
    found: dict[str, Any] = first
    return found


def _from_hub(**more: Any) -> dict[str, Any]:
    return {"model": {"handler": "hf", "source": {"huggingFace": {"repo": "a/b", **more}}}}


def _mounts(container: dict[str, Any]) -> dict[str, Any]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def _volumes(spec: dict[str, Any]) -> dict[str, Any]:
    return {volume["name"]: volume for volume in _pod(spec)["volumes"]}


def _environment(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def _revision(spec: dict[str, Any]) -> str:
    return render.revision(*_read(spec), IMAGES)


def test_an_owner_reference_asks_for_no_rights_on_finalizers() -> None:
    (owner,) = _deployment(SIMULATED)["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "name": "minilm",
        "uid": "6a",
        "controller": True,
    }


def test_the_sidecar_is_a_native_one_and_reads_its_settings_back() -> None:
    batcher, _ = _containers(SIMULATED)
    assert (batcher["name"], batcher["restartPolicy"]) == ("batcher", "Always")
    settings = from_environment(SidecarSettings, _environment(batcher))
    assert settings.model_socket == "/run/batchedmodel/model.sock"
    assert settings.upstream_url == ""
    assert settings.drain_timeout_seconds == 40
    mounts = {mount["mountPath"]: mount for mount in batcher["volumeMounts"]}
    assert "subPath" not in mounts["/etc/batchedmodel"], "a single file is never refreshed"


def test_a_handler_runs_in_our_model_server() -> None:
    source = {"huggingFace": {"repo": "a/b"}}
    _, model = _containers({"model": {"handler": "hf", "source": source}})
    assert model["image"] == IMAGES.model_server
    settings = from_environment(ModelServerSettings, _environment(model))
    assert (settings.handler, settings.max_batch_size) == ("hf", 16)
    assert settings.source == '{"huggingFace": {"repo": "a/b", "revision": "main"}}'
    assert _environment(model)["HF_HOME"].startswith("/var/cache/batchedmodel/")


def test_a_repository_is_fetched_before_anything_else_and_then_only_read() -> None:
    spec = _from_hub(revision="v1")
    fetch, (_, model) = _fetch(spec), _containers(spec)
    assert fetch["name"] == "fetch-model"
    assert "restartPolicy" not in fetch, "it ends before the others begin"
    assert fetch["command"] == ["python", "-m", "batchedmodel_model_server.fetch"]
    assert fetch["image"] == model["image"] == IMAGES.model_server
    told = from_environment(FetchSettings, _environment(fetch))
    server = from_environment(ModelServerSettings, _environment(model))
    assert told.source == server.source == '{"huggingFace": {"repo": "a/b", "revision": "v1"}}'
    assert told.cache_folder == server.cache_folder == "/var/cache/batchedmodel"
    assert told.report_file == "/dev/termination-log"
    writes, reads = _mounts(fetch)["model-files"], _mounts(model)["model-files"]
    assert writes["mountPath"] == reads["mountPath"] == "/var/cache/batchedmodel/hub"
    assert ("readOnly" in writes, reads["readOnly"]) == (False, True)
    assert _volumes(spec)["model-files"] == {"name": "model-files", "emptyDir": {}}
    assert _environment(model)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in _environment(fetch)


def test_what_fetches_meets_the_restricted_standard_and_writes_only_where_it_must() -> None:
    fetch = _fetch(_from_hub())
    assert fetch["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert _mounts(fetch).keys() == {"model-files", "temporary"}
    assert _environment(fetch)["HF_HOME"].startswith("/tmp/")


def test_the_token_reaches_only_what_fetches_and_never_the_operator() -> None:
    spec = _from_hub(tokenSecretRef={"name": "hub"})
    spec["model"]["env"] = {"HF_TOKEN": "written down", "HTTPS_PROXY": "http://proxy"}
    fetch, (batcher, model) = _fetch(spec), _containers(spec)
    (token,) = [entry for entry in fetch["env"] if entry["name"] == "HF_TOKEN"]
    key = {"name": "hub", "key": "token"}
    assert token == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}
    assert _environment(fetch)["HTTPS_PROXY"] == "http://proxy"
    for other in (batcher, model):
        assert not any("valueFrom" in entry for entry in other["env"])


def test_a_claim_keeps_what_was_fetched() -> None:
    spec = _from_hub(cacheClaimName="models")
    claim = {"claimName": "models"}
    assert _volumes(spec)["model-files"]["persistentVolumeClaim"] == claim
    assert _mounts(_containers(spec)[1])["model-files"]["readOnly"] is True


def test_what_fetches_asks_for_no_more_than_the_model_and_for_no_device() -> None:
    spec = _from_hub()
    spec["model"]["resources"] = {
        "requests": {"cpu": "1", "amd.com/gpu": "1"},
        "limits": {"memory": "8Gi", "amd.com/gpu": "1"},
    }
    spec["accelerator"] = {}
    assert _fetch(spec)["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "8Gi"}}


def test_what_the_manifest_trusts_is_fetched_as_well() -> None:
    spec = _from_hub()
    spec["model"]["trust"] = True
    assert from_environment(FetchSettings, _environment(_fetch(spec))).trust is True


def test_a_rollout_that_fetches_may_take_longer() -> None:
    def seconds(spec: dict[str, Any]) -> Any:
        return _deployment(spec)["spec"]["progressDeadlineSeconds"]

    assert seconds(SIMULATED) == 1200 + 600
    assert seconds(_from_hub()) == 1200 + 600 + 3600


def test_a_volume_is_mounted_for_reading_and_nothing_is_fetched() -> None:
    volume = {"claimName": "models", "subPath": "minilm/v1"}
    spec = {"model": {"handler": "hf", "source": {"volume": volume}}}
    (batcher,) = _pod(spec)["initContainers"]
    assert batcher["name"] == "batcher"
    _, model = _containers(spec)
    mount = _mounts(model)["model-files"]
    assert (mount["readOnly"], mount["subPath"]) == (True, "minilm/v1")
    settings = from_environment(ModelServerSettings, _environment(model))
    assert source_from_json(settings.source) == Source(path=mount["mountPath"])
    claim = {"claimName": "models"}
    assert _volumes(spec)["model-files"]["persistentVolumeClaim"] == claim
    assert "HF_HUB_OFFLINE" not in _environment(model)


@pytest.mark.parametrize(
    "model",
    [
        {"handler": "simulated"},
        {"handler": "hf", "source": {"path": "/models/minilm"}},
        {"handler": "hf", "source": {"pythonPackage": "minilm"}},
        FOREIGN["model"],
    ],
    ids=["simulated", "path", "package", "foreign"],
)
def test_what_the_image_brings_is_not_fetched(model: dict[str, Any]) -> None:
    (batcher,) = _pod({"model": model})["initContainers"]
    assert batcher["name"] == "batcher"
    assert "model-files" not in _volumes({"model": model})


def test_an_image_with_a_handler_replaces_the_charts() -> None:
    _, model = _containers({"model": {"handler": "my.code:Model", "image": "me/model:2"}})
    assert model["image"] == "me/model:2"


def test_a_foreign_container_is_reached_over_tcp() -> None:
    batcher, model = _containers(FOREIGN)
    settings = from_environment(SidecarSettings, _environment(batcher))
    assert (settings.upstream_url, settings.model_socket) == ("http://127.0.0.1:9001", "")
    assert (settings.upstream_protocol, settings.idempotent) == (ServerProtocol.V2, True)
    assert model["image"] == "registry.example/triton:1"
    assert model["env"] == []
    assert model["ports"] == [{"name": "model", "containerPort": 9001, "protocol": "TCP"}]


def test_the_sidecar_is_told_what_a_foreign_container_speaks_and_what_may_run_again() -> None:
    spec = {"model": {"protocol": "OpenAI", "image": "own/embedder:3", "idempotent": False}}
    settings = from_environment(SidecarSettings, _environment(_containers(spec)[0]))
    assert (settings.upstream_protocol, settings.idempotent) == (ServerProtocol.OPENAI, False)


def test_the_users_variables_change_the_cache_but_not_what_the_sidecar_relies_on() -> None:
    env = {"HF_HOME": "/models", "TOKEN": "x", "BATCHEDMODEL_MODEL_SOCKET": "/elsewhere"}
    _, model = _containers({"model": {"handler": "simulated", "env": env}})
    found = _environment(model)
    assert (found["HF_HOME"], found["TOKEN"]) == ("/models", "x")
    assert found["BATCHEDMODEL_MODEL_SOCKET"] == "/run/batchedmodel/model.sock"


def test_an_accelerator_is_asked_for_and_its_taint_tolerated() -> None:
    spec = {
        "model": {"handler": "simulated", "resources": {"limits": {"memory": "8Gi"}}},
        "accelerator": {"resource": "amd.com/gpu", "count": 2},
        "pod": {"tolerations": [{"key": "mine", "operator": "Exists"}]},
    }
    _, model = _containers(spec)
    assert model["resources"] == {"limits": {"memory": "8Gi", "amd.com/gpu": "2"}}
    assert _pod(spec)["tolerations"] == [
        {"key": "mine", "operator": "Exists"},
        {"key": "amd.com/gpu", "operator": "Exists"},
    ]


def test_without_a_spare_accelerator_the_old_pod_goes_first() -> None:
    def rolling(spec: dict[str, Any]) -> Any:
        return _deployment(spec)["spec"]["strategy"]["rollingUpdate"]

    assert rolling(SIMULATED) == {"maxSurge": "25%", "maxUnavailable": 0}
    assert rolling({**SIMULATED, "accelerator": {}}) == {"maxSurge": 0, "maxUnavailable": 1}


def _rolling_update(spec: dict[str, Any]) -> Any:
    return _deployment({**SIMULATED, **spec})["spec"]["strategy"]["rollingUpdate"]


@pytest.mark.parametrize(
    ("rollout", "without", "with_accelerator"),
    [
        ({"maxSurge": 2}, (2, 0), (2, 0)),
        ({"maxSurge": 0}, (0, 1), (0, 1)),
        ({"maxUnavailable": "50%"}, ("25%", "50%"), (0, "50%")),
        ({"maxUnavailable": 0}, ("25%", 0), ("25%", 0)),
        ({"maxSurge": "10%", "maxUnavailable": 3}, ("10%", 3), ("10%", 3)),
    ],
    ids=str,
)
def test_what_is_not_said_of_a_rollout_lets_it_go_on(
    rollout: dict[str, Any], without: tuple[Any, Any], with_accelerator: tuple[Any, Any]
) -> None:
    plain = _rolling_update({"rollout": rollout})
    scarce = _rolling_update({"rollout": rollout, "accelerator": {}})
    assert (plain["maxSurge"], plain["maxUnavailable"]) == without
    assert (scarce["maxSurge"], scarce["maxUnavailable"]) == with_accelerator


def test_a_pod_that_is_watched_for_long_does_not_count_as_stuck() -> None:
    usual, watched = (
        _deployment({**SIMULATED, "rollout": rollout})["spec"]
        for rollout in ({}, {"minReadySeconds": 3600, "revisionHistoryLimit": 20})
    )
    assert (watched["minReadySeconds"], watched["revisionHistoryLimit"]) == (3600, 20)
    assert watched["progressDeadlineSeconds"] == usual["progressDeadlineSeconds"] + 3600


def test_a_pod_may_take_as_long_to_end_as_its_drain() -> None:
    pod = _pod({**SIMULATED, "drain": {"delaySeconds": 7}})
    assert pod["terminationGracePeriodSeconds"] == 7 + 40 + 15


def test_the_model_ends_only_after_a_drain_with_the_token() -> None:
    batcher, model = _containers(SIMULATED)
    get = model["lifecycle"]["preStop"]["httpGet"]
    (header,) = get["httpHeaders"]
    assert (get["path"], get["port"], header["name"]) == ("/drain", 9090, "X-Drain-Token")
    assert header["value"] == _environment(batcher)["BATCHEDMODEL_DRAIN_TOKEN"]
    assert len(header["value"]) == 32
    assert "lifecycle" not in batcher


def test_the_probes_of_the_model_ask_the_sidecar_and_give_it_a_minute() -> None:
    _, model = _containers({**SIMULATED, "startup": {"timeoutSeconds": 101}})
    start, live = model["startupProbe"], model["livenessProbe"]
    assert (start["httpGet"]["path"], start["httpGet"]["port"]) == ("/model/startup", 9090)
    assert start["periodSeconds"] * start["failureThreshold"] >= 101
    assert live["periodSeconds"] * live["failureThreshold"] >= 60
    assert live["terminationGracePeriodSeconds"] == 5
    assert "readinessProbe" not in model, "the pod's readiness is the sidecar's"


def test_the_pod_meets_the_restricted_standard() -> None:
    pod = _pod(SIMULATED)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in _containers(SIMULATED):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert _containers(SIMULATED)[0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_by_the_baseline_the_model_is_who_its_image_says_and_the_others_have_no_rights() -> None:
    spec = {**_from_hub(), "security": {"profile": "Baseline"}}
    pod = _pod(spec)
    assert "runAsUser" not in pod["securityContext"]
    assert "runAsNonRoot" not in pod["securityContext"]
    assert pod["securityContext"]["fsGroup"] == 65532, "both can use the socket"
    batcher, model = _containers(spec)
    assert model["securityContext"] == {}
    for container in (batcher, _fetch(spec)):
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
    body = _deployment(spec)["spec"]
    metadata = body["template"]["metadata"]
    assert (
        metadata["labels"].items() >= {"team": "search", "batchedmodel.dev/name": "minilm"}.items()
    )
    assert metadata["annotations"] == {"example.com/scrape": "no"}
    assert body["selector"] == {"matchLabels": {"batchedmodel.dev/name": "minilm"}}
    assert _volumes(spec)["data"] == {"name": "data", "emptyDir": {}}
    batcher, model = _containers(spec)
    assert _mounts(model)["data"] == mount
    assert "data" not in _mounts(batcher)
    assert "annotations" not in _deployment(SIMULATED)["spec"]["template"]["metadata"]


def test_pods_are_spread_over_zones_and_nodes_unless_said_otherwise() -> None:
    selector = {"matchLabels": {"batchedmodel.dev/name": "minilm"}}
    usual = _pod(SIMULATED)["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in usual] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    assert {one["whenUnsatisfiable"] for one in usual} == {"ScheduleAnyway"}
    assert all(one["labelSelector"] == selector for one in usual)
    racks = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    own = {"matchLabels": {"team": "search"}}
    given = [racks, racks | {"labelSelector": own}]
    spread = _pod({**SIMULATED, "pod": {"topologySpreadConstraints": given}})
    assert spread["topologySpreadConstraints"] == [
        racks | {"labelSelector": selector},
        racks | {"labelSelector": own},
    ]
    none = _pod({**SIMULATED, "pod": {"topologySpreadConstraints": []}})
    assert "topologySpreadConstraints" not in none


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
    pod = _pod({**SIMULATED, "pod": placement})
    expected = {**placement, "imagePullSecrets": [{"name": "hub"}]}
    assert {name: pod[name] for name in expected} == expected


def test_only_what_pods_depend_on_makes_a_revision() -> None:
    same: list[dict[str, Any]] = [
        {"batching": {"maxBatchSize": 7, "requestTimeoutSeconds": 77, "policy": "Window"}},
        {"replicas": 4},
        {"autoscaling": {"maxReplicas": 9}},
        {"service": {"port": 81, "annotations": {"a": "b"}}},
        {"suspend": True},
        {"rollout": {"maxSurge": 3, "minReadySeconds": 9}},
        {"disruption": {"maxUnavailable": 2}},
    ]
    others: list[dict[str, Any]] = [
        {"accelerator": {}},
        {"drain": {"delaySeconds": 6}},
        {"drain": {"timeoutSeconds": 77}},
        {"startup": {"timeoutSeconds": 77}},
        {"sidecar": {"resources": {"limits": {"cpu": "1"}}}},
        {"pod": {"nodeSelector": {"a": "b"}}},
        {"pod": {"labels": {"a": "b"}}},
        {"pod": {"annotations": {"a": "b"}}},
        {"security": {"profile": "Baseline"}},
    ]
    usual = _revision(SIMULATED)
    assert all(_revision({**SIMULATED, **change}) == usual for change in same)
    revisions = [_revision({**SIMULATED, **change}) for change in others]
    assert len({usual, *revisions}) == len(others) + 1


def test_the_service_leads_to_the_sidecars_only() -> None:
    model, spec = _read({**SIMULATED, "service": {"port": 81, "type": "NodePort"}})
    body = render.service(model, spec)["spec"]
    assert body["type"] == "NodePort"
    assert body["selector"] == {"batchedmodel.dev/name": "minilm"}
    (port,) = body["ports"]
    assert (port["port"], port["targetPort"]) == (81, 8000)


def test_a_service_has_the_annotations_of_the_manifest() -> None:
    annotations = {"example.com/scheme": "internal"}
    model, spec = _read({**SIMULATED, "service": {"annotations": annotations}})
    assert render.service(model, spec)["metadata"]["annotations"] == annotations


def test_a_budget_protects_pods_that_serve_and_no_others() -> None:
    model, spec = _read({**SIMULATED, "replicas": 2, "disruption": {"maxUnavailable": "50%"}})
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
    _, spec = _read({**SIMULATED, **more})
    assert render.needs_disruption_budget(spec) is needed


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


def _autoscaler(scaling: dict[str, Any]) -> dict[str, Any]:
    model, spec = _read({**SIMULATED, "autoscaling": scaling})
    assert spec.autoscaling is not None
    body: dict[str, Any] = render.autoscaler(model, spec, spec.autoscaling)["spec"]
    return body


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


def test_a_behaviour_of_ones_own_stands_above_the_profile_in_its_direction() -> None:
    own = {"stabilizationWindowSeconds": 60}
    scaling = {"maxReplicas": 3, "profile": "Fast", "behavior": {"scaleDown": own}}
    behavior = _autoscaler(scaling)["behavior"]
    assert behavior["scaleDown"] == own
    fast = _autoscaler({"maxReplicas": 3, "profile": "Fast"})["behavior"]
    assert behavior["scaleUp"] == fast["scaleUp"]
