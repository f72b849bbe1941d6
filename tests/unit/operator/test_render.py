"""The manifests of the children, as far as somebody relies on their details."""

from dataclasses import replace
from typing import Any

import pytest

from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.environment import (
    AcceleratorNeed,
    FetchSettings,
    ModelServerSettings,
    SidecarSettings,
    from_environment,
    source_from_json,
)
from batchedmodel_operator import render
from support.operator_world import IMAGES, SIMULATED
from support.rendered import (
    PINNED,
    containers_of,
    deployment_of,
    environment_of,
    fetch_of,
    from_hub,
    mounts_of,
    pod_of,
    read_model,
    revision_of,
    volumes_of,
)

UPSTREAM = {"model": {"protocol": "V2", "image": "registry.example/triton:1", "port": 9001}}


def test_an_owner_reference_asks_for_no_rights_on_finalizers() -> None:
    (owner,) = deployment_of(SIMULATED)["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "name": "minilm",
        "uid": "6a",
        "controller": True,
    }


def test_the_sidecar_is_a_native_one_and_reads_its_settings_back() -> None:
    batcher, _ = containers_of(SIMULATED)
    assert (batcher["name"], batcher["restartPolicy"]) == ("batcher", "Always")
    settings = from_environment(SidecarSettings, environment_of(batcher))
    assert settings.model_socket == "/run/batchedmodel/model.sock"
    assert settings.upstream_url == ""
    assert settings.drain_timeout_seconds == 40
    mounts = {mount["mountPath"]: mount for mount in batcher["volumeMounts"]}
    assert "subPath" not in mounts["/etc/batchedmodel"], "a single file is never refreshed"


def test_a_handler_runs_in_our_model_server() -> None:
    source = {"huggingFace": {"repo": "a/b"}}
    _, model = containers_of({"model": {"handler": "hf", "source": source}})
    assert model["image"] == IMAGES.model_server
    settings = from_environment(ModelServerSettings, environment_of(model))
    assert (settings.handler, settings.max_batch_size) == ("hf", 16)
    assert settings.source == '{"huggingFace": {"repo": "a/b", "revision": "main"}}'
    assert environment_of(model)["HF_HOME"].startswith("/var/cache/batchedmodel/")


def test_a_handler_is_told_at_its_start_how_much_cache_and_context_it_has() -> None:
    generation = {"kvCache": {"memory": "1.5Gi"}, "maxContextTokens": 4096}
    _, model = containers_of({"model": {"handler": "simulated"}, "generation": generation})
    settings = from_environment(ModelServerSettings, environment_of(model))
    assert (settings.kv_cache_bytes, settings.max_context_tokens) == (3 << 29, 4096)
    assert settings.kv_cache_fraction == 0
    shared = {"kvCache": {"fraction": 0.25}, "maxSequences": 8}
    _, model = containers_of({"model": {"handler": "simulated"}, "generation": shared})
    settings = from_environment(ModelServerSettings, environment_of(model))
    assert (settings.kv_cache_bytes, settings.max_context_tokens) == (0, 0)
    assert settings.kv_cache_fraction == 0.25


def test_a_repository_is_fetched_before_anything_else_and_then_only_read() -> None:
    spec = from_hub(revision="v1")
    fetch, (_, model) = fetch_of(spec), containers_of(spec)
    assert fetch["name"] == "fetch-model"
    assert "restartPolicy" not in fetch, "it ends before the others begin"
    assert fetch["command"] == ["python", "-m", "batchedmodel_model_server.sources.fetch"]
    assert fetch["image"] == model["image"] == IMAGES.model_server
    told = from_environment(FetchSettings, environment_of(fetch))
    server = from_environment(ModelServerSettings, environment_of(model))
    assert told.source == server.source == '{"huggingFace": {"repo": "a/b", "revision": "v1"}}'
    assert told.cache_folder == server.cache_folder == "/var/cache/batchedmodel"
    assert told.report_file == "/dev/termination-log"
    writes, reads = mounts_of(fetch)["model-files"], mounts_of(model)["model-files"]
    assert writes["mountPath"] == reads["mountPath"] == "/var/cache/batchedmodel/hub"
    assert ("readOnly" in writes, reads["readOnly"]) == (False, True)
    assert volumes_of(spec)["model-files"] == {"name": "model-files", "emptyDir": {}}
    assert environment_of(model)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment_of(fetch)


def test_what_fetches_meets_the_restricted_standard_and_writes_only_where_it_must() -> None:
    fetch = fetch_of(from_hub())
    assert fetch["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert mounts_of(fetch).keys() == {"model-files", "temporary"}
    assert environment_of(fetch)["HF_HOME"].startswith("/tmp/")


def test_the_token_reaches_only_what_fetches_and_never_the_operator() -> None:
    spec = from_hub(tokenSecretRef={"name": "hub"})
    spec["model"]["env"] = {"HF_TOKEN": "written down", "HTTPS_PROXY": "http://proxy"}
    fetch, (batcher, model) = fetch_of(spec), containers_of(spec)
    (token,) = [entry for entry in fetch["env"] if entry["name"] == "HF_TOKEN"]
    key = {"name": "hub", "key": "token"}
    assert token == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}
    assert environment_of(fetch)["HTTPS_PROXY"] == "http://proxy"
    for other in (batcher, model):
        assert not any("secretKeyRef" in entry.get("valueFrom", {}) for entry in other["env"])


def test_a_claim_keeps_what_was_fetched() -> None:
    spec = from_hub(cacheClaimName="models")
    claim = {"claimName": "models"}
    assert volumes_of(spec)["model-files"]["persistentVolumeClaim"] == claim
    assert mounts_of(containers_of(spec)[1])["model-files"]["readOnly"] is True


def test_what_fetches_asks_for_no_more_than_the_model_and_for_no_device() -> None:
    spec = from_hub()
    spec["model"]["resources"] = {
        "requests": {"cpu": "1", "amd.com/gpu": "1"},
        "limits": {"memory": "8Gi", "amd.com/gpu": "1"},
    }
    spec["accelerator"] = {}
    assert fetch_of(spec)["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "8Gi"}}


def test_what_the_manifest_trusts_is_fetched_as_well() -> None:
    spec = from_hub()
    spec["model"]["trustRemoteCode"] = True
    assert from_environment(FetchSettings, environment_of(fetch_of(spec))).trust is True


def test_a_rollout_that_fetches_may_take_longer() -> None:
    def seconds(spec: dict[str, Any]) -> Any:
        return deployment_of(spec)["spec"]["progressDeadlineSeconds"]

    assert seconds(SIMULATED) == 1200 + 600
    assert seconds(from_hub()) == 1200 + 600 + 3600


def test_a_volume_is_mounted_for_reading_and_nothing_is_fetched() -> None:
    volume = {"claimName": "models", "subPath": "minilm/v1"}
    spec = {"model": {"handler": "hf", "source": {"volume": volume}}}
    (batcher,) = pod_of(spec)["initContainers"]
    assert batcher["name"] == "batcher"
    _, model = containers_of(spec)
    mount = mounts_of(model)["model-files"]
    assert (mount["readOnly"], mount["subPath"]) == (True, "minilm/v1")
    settings = from_environment(ModelServerSettings, environment_of(model))
    assert source_from_json(settings.source) == Source(path=mount["mountPath"])
    claim = {"claimName": "models"}
    assert volumes_of(spec)["model-files"]["persistentVolumeClaim"] == claim
    assert "HF_HUB_OFFLINE" not in environment_of(model)


@pytest.mark.parametrize(
    "model",
    [
        {"handler": "simulated"},
        {"handler": "hf", "source": {"path": "/models/minilm"}},
        {"handler": "hf", "source": {"pythonPackage": "minilm"}},
        UPSTREAM["model"],
    ],
    ids=["simulated", "path", "package", "upstream"],
)
def test_what_the_image_brings_is_not_fetched(model: dict[str, Any]) -> None:
    (batcher,) = pod_of({"model": model})["initContainers"]
    assert batcher["name"] == "batcher"
    assert "model-files" not in volumes_of({"model": model})


def test_an_image_with_a_handler_replaces_the_charts() -> None:
    _, model = containers_of({"model": {"handler": "my.code:Model", "image": "me/model:2"}})
    assert model["image"] == "me/model:2"


def test_an_upstream_container_is_reached_over_tcp() -> None:
    batcher, model = containers_of(UPSTREAM)
    settings = from_environment(SidecarSettings, environment_of(batcher))
    assert (settings.upstream_url, settings.model_socket) == ("http://127.0.0.1:9001", "")
    assert (settings.upstream_protocol, settings.idempotent) == (ServerProtocol.V2, True)
    assert model["image"] == "registry.example/triton:1"
    assert model["env"] == []
    assert model["ports"] == [{"name": "model", "containerPort": 9001, "protocol": "TCP"}]


def test_the_sidecar_is_told_what_an_upstream_container_speaks_and_what_may_run_again() -> None:
    spec = {"model": {"protocol": "OpenAI", "image": "own/embedder:3", "idempotent": False}}
    settings = from_environment(SidecarSettings, environment_of(containers_of(spec)[0]))
    assert (settings.upstream_protocol, settings.idempotent) == (ServerProtocol.OPENAI, False)


def test_an_upstream_container_runs_what_its_manifest_says() -> None:
    more = {
        "imagePullPolicy": "Always",
        "command": ["/bin/server"],
        "args": ["--model-id", "a/b"],
        "envFrom": [{"secretRef": {"name": "hub"}}],
    }
    batcher, model = containers_of({"model": {**UPSTREAM["model"], **more}})
    assert {name: model[name] for name in more} == more
    assert batcher["imagePullPolicy"] == IMAGES.pull_policy
    _, plain = containers_of(UPSTREAM)
    assert plain.keys().isdisjoint({"command", "args", "envFrom"})
    assert plain["imagePullPolicy"] == IMAGES.pull_policy


def test_the_users_variables_change_the_cache_but_not_what_the_sidecar_relies_on() -> None:
    env = {"HF_HOME": "/models", "TOKEN": "x", "BATCHEDMODEL_MODEL_SOCKET": "/elsewhere"}
    _, model = containers_of({"model": {"handler": "simulated", "env": env}})
    found = environment_of(model)
    assert (found["HF_HOME"], found["TOKEN"]) == ("/models", "x")
    assert found["BATCHEDMODEL_MODEL_SOCKET"] == "/run/batchedmodel/model.sock"


def test_an_accelerator_is_asked_for_and_its_taint_tolerated() -> None:
    spec = {
        "model": {"handler": "simulated", "resources": {"limits": {"memory": "8Gi"}}},
        "accelerator": {"resource": "amd.com/gpu", "count": 2},
        "pod": {"tolerations": [{"key": "mine", "operator": "Exists"}]},
    }
    _, model = containers_of(spec)
    assert model["resources"]["limits"] == {"memory": "8Gi", "amd.com/gpu": "2"}
    assert pod_of(spec)["tolerations"] == [
        {"key": "mine", "operator": "Exists"},
        {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]
    without = {**spec, "accelerator": {"tolerate": False}}
    assert pod_of(without)["tolerations"] == [{"key": "mine", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("given", "need"),
    [({}, AcceleratorNeed.NONE), ({"accelerator": {}}, AcceleratorNeed.REQUIRED)],
    ids=["none", "one"],
)
def test_a_model_with_an_accelerator_is_told_to_fail_without(
    given: dict[str, Any], need: AcceleratorNeed
) -> None:
    _, model = containers_of({**SIMULATED, **given})
    assert from_environment(ModelServerSettings, environment_of(model)).accelerator is need


def test_a_pod_may_take_as_long_to_end_as_its_drain() -> None:
    pod = pod_of({**SIMULATED, "drain": {"delaySeconds": 7}})
    assert pod["terminationGracePeriodSeconds"] == 3 * 7 + 40 + 15


def test_the_sidecars_own_hook_drains_and_the_models_only_waits_for_it() -> None:
    batcher, model = containers_of(SIMULATED)
    assert batcher["lifecycle"]["preStop"] == {
        "exec": {"command": ["python", "-m", "batchedmodel_sidecar.admin_client", "drain"]}
    }
    assert model["lifecycle"]["preStop"] == {"httpGet": {"path": "/drained", "port": 9090}}


def test_the_token_is_a_file_on_a_volume_that_no_other_container_mounts() -> None:
    batcher, model = containers_of(SIMULATED)
    file = environment_of(batcher)["BATCHEDMODEL_TOKEN_FILE"]
    (volume,) = [
        mount["name"]
        for mount in batcher["volumeMounts"]
        if file.startswith(f"{mount['mountPath']}/")
    ]
    assert volume in volumes_of(SIMULATED)
    assert "emptyDir" in volumes_of(SIMULATED)[volume]
    assert volume not in [mount["name"] for mount in model["volumeMounts"]]


def test_nothing_that_others_may_read_tells_the_token() -> None:
    """Pods of two objects of the same words differ in nothing, so they tell no secret of either."""
    model, spec = read_model(SIMULATED)
    other = replace(model, uid="another")
    one, two = (render.pod_template(owner, spec, IMAGES, PINNED) for owner in (model, other))
    assert one == two


def test_the_sidecar_is_told_its_pods_uid() -> None:
    batcher, _ = containers_of(SIMULATED)
    (told,) = [one for one in batcher["env"] if one["name"] == "BATCHEDMODEL_POD_UID"]
    assert told["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


def test_the_probes_of_the_model_ask_the_sidecar_and_give_it_a_minute() -> None:
    _, model = containers_of({**SIMULATED, "startup": {"timeoutSeconds": 101}})
    start, live = model["startupProbe"], model["livenessProbe"]
    assert (start["httpGet"]["path"], start["httpGet"]["port"]) == ("/model/startup", 9090)
    assert start["periodSeconds"] * start["failureThreshold"] >= 101
    assert live["periodSeconds"] * live["failureThreshold"] >= 60
    assert live["terminationGracePeriodSeconds"] == 5
    assert "readinessProbe" not in model, "the pod's readiness is the sidecar's"


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
    usual = revision_of(SIMULATED)
    assert all(revision_of({**SIMULATED, **change}) == usual for change in same)
    revisions = [revision_of({**SIMULATED, **change}) for change in others]
    assert len({usual, *revisions}) == len(others) + 1
