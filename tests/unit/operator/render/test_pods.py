"""What a pod asks for, carries and tolerates when its manifest says nothing of it."""

from dataclasses import replace
from typing import Any

import pytest

from batchedmodel_contract.processes.logs import LogFormat
from batchedmodel_kube.manifest.workload import UserIds
from batchedmodel_kube.names import REVISION_LABEL
from batchedmodel_operator import render
from support.operator_world import IMAGES, SIMULATED
from support.rendered import (
    containers_of,
    deployment_of,
    fetch_of,
    from_hub,
    pod_of,
    read_model,
    volumes_of,
)

UPSTREAM = {"protocol": "V2", "image": "mine"}


@pytest.mark.parametrize(
    ("model", "memory"),
    [(SIMULATED["model"], "96Mi"), ({"handler": "mine:Model"}, "768Mi"), (UPSTREAM, "256Mi")],
    ids=["simulated", "handler", "a server of one's own"],
)
def test_no_pod_is_the_first_to_be_evicted(model: dict[str, Any], memory: str) -> None:
    batcher, server = containers_of({"model": model})
    assert batcher["resources"] == {"requests": {"cpu": "100m", "memory": "112Mi"}}
    assert server["resources"]["requests"].keys() == {"cpu", "memory"}
    assert server["resources"]["requests"]["memory"] == memory


def test_what_the_manifest_says_of_a_resource_stands_alone() -> None:
    said = {"requests": {"cpu": "2"}, "limits": {"memory": "64Mi"}}
    spec = {
        "model": {"handler": "simulated", "resources": said},
        "sidecar": {"resources": said},
        "accelerator": {"count": 2},
    }
    batcher, model = containers_of(spec)
    assert batcher["resources"] == said
    assert model["resources"] == {
        "requests": {"cpu": "2"},
        "limits": {"memory": "64Mi", "nvidia.com/gpu": "2"},
    }


@pytest.mark.parametrize(
    ("rows", "memory"), [(32, "112Mi"), (2048, "112Mi"), (20_000, "224Mi"), (1_000_000, "352Mi")]
)
def test_a_sidecar_of_a_long_queue_asks_for_more_memory_up_to_that_of_all_bodies(
    rows: int, memory: str
) -> None:
    spec = {**SIMULATED, "batching": {"maxQueueSize": rows}}
    model, read = read_model(spec)
    pinned = render.pinned_batching(read)
    assert pinned.max_queue_size == rows
    template = render.pod_template(model, read, IMAGES, pinned)
    (batcher,) = template["spec"]["initContainers"]
    assert batcher["resources"]["requests"]["memory"] == memory


def test_a_longer_queue_replaces_no_pod() -> None:
    names = set()
    for rows in (64, 100_000):
        model, spec = read_model({**SIMULATED, "batching": {"maxQueueSize": rows}})
        names.add((render.revision(model, spec, IMAGES), render.revision_name(model, spec)))
    assert len(names) == 1


def test_a_container_that_fails_leaves_its_last_words() -> None:
    for container in (*containers_of(from_hub()), fetch_of(from_hub())):
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_pods_have_the_labels_that_tools_look_for_unless_the_manifest_has_others() -> None:
    def labels(pod: dict[str, Any]) -> Any:
        return deployment_of({**SIMULATED, "pod": pod})["spec"]["template"]["metadata"]["labels"]

    usual = labels({})
    assert usual["app.kubernetes.io/name"] == "batchedmodel"
    assert usual["app.kubernetes.io/instance"] == "minilm"
    own = labels({"labels": {"app.kubernetes.io/name": "search"}})
    assert own == {**usual, "app.kubernetes.io/name": "search", REVISION_LABEL: own[REVISION_LABEL]}


def test_a_node_may_be_emptied_although_pods_have_volumes_there() -> None:
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

    def annotations(pod: dict[str, Any]) -> Any:
        body = deployment_of({**from_hub(), "pod": pod})
        return body["spec"]["template"]["metadata"]["annotations"]

    local = {name for name, one in volumes_of(from_hub()).items() if "emptyDir" in one}
    assert local <= set(annotations({})[key].split(","))
    assert annotations({"annotations": {key: "none"}}) == {key: "none"}


def test_volumes_on_the_node_have_a_size_unless_weights_lie_in_them() -> None:
    volumes = volumes_of(from_hub())
    for name in ("socket", "batcher-temporary"):
        assert volumes[name]["emptyDir"] == {"sizeLimit": "64Mi"}
    assert volumes["temporary"]["emptyDir"] == {"sizeLimit": "16Gi"}
    assert volumes["memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    for name in ("cache", "model-files"):
        assert volumes[name]["emptyDir"] == {}


def test_limits_of_the_manifest_are_those_of_the_volumes() -> None:
    limits = {"memory": "2Gi", "ephemeral-storage": "40Gi"}
    spec = from_hub()
    limited = {**spec, "model": {**spec["model"], "resources": {"limits": limits}}}
    volumes = volumes_of(limited)
    assert volumes["memory"]["emptyDir"]["sizeLimit"] == "2Gi"
    for name in ("cache", "temporary", "model-files"):
        assert volumes[name]["emptyDir"] == {"sizeLimit": "40Gi"}


def test_what_fetches_asks_for_what_the_model_does_as_a_quota_counts_it_too() -> None:
    spec = {**from_hub(), "accelerator": {"resource": "nvidia.com/gpu", "count": 1}}
    assert fetch_of(spec)["resources"] == {"requests": {"cpu": "250m", "memory": "768Mi"}}
    given = {"requests": {"memory": "9Gi"}, "limits": {"cpu": "2"}}
    sized = {**spec, "model": {**spec["model"], "resources": given}}
    assert fetch_of(sized)["resources"] == given


@pytest.mark.parametrize(
    ("resource", "keys"),
    [
        ("nvidia.com/gpu", ["nvidia.com/gpu"]),
        ("nvidia.com/gpu.shared", ["nvidia.com/gpu.shared", "nvidia.com/gpu"]),
        ("nvidia.com/mig-1g.5gb", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu"]),
        ("amd.com/gpu", ["amd.com/gpu"]),
    ],
)
def test_cut_and_shared_devices_are_found_in_pools_with_the_taint_of_whole_ones(
    resource: str, keys: list[str]
) -> None:
    tolerated = pod_of({**SIMULATED, "accelerator": {"resource": resource}})["tolerations"]
    assert [one["key"] for one in tolerated] == keys
    assert {(one["operator"], one["effect"]) for one in tolerated} == {("Exists", "NoSchedule")}


@pytest.mark.parametrize("profile", ["Restricted", "Baseline"])
@pytest.mark.parametrize("by_chart", [True, False], ids=["by the chart", "by the manifest"])
def test_a_cluster_may_give_users_and_groups_itself(profile: str, by_chart: bool) -> None:
    ids = {} if by_chart else {"ids": "FromCluster"}
    images = replace(IMAGES, ids=UserIds.FROM_CLUSTER if by_chart else UserIds.FIXED)
    spec = {**from_hub(), "security": {"profile": profile, **ids}}
    model, read = read_model(spec)
    pod = render.pod_template(model, read, images, render.pinned_batching(read))["spec"]
    contexts = [pod["securityContext"]]
    contexts += [one["securityContext"] for one in (*pod["initContainers"], *pod["containers"])]
    for context in contexts:
        assert not context.keys() & {"runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"}
    ours = pod["securityContext"] if profile == "Restricted" else contexts[1]
    assert ours["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_a_manifest_may_name_users_where_the_chart_does_not() -> None:
    model, read = read_model({**SIMULATED, "security": {"ids": "Fixed"}})
    images = replace(IMAGES, ids=UserIds.FROM_CLUSTER)
    pod = render.pod_template(model, read, images, render.pinned_batching(read))["spec"]
    assert pod["securityContext"]["runAsUser"] == 65532


def test_all_containers_of_ours_log_in_the_form_of_the_chart() -> None:
    model, read = read_model(from_hub())
    images = replace(IMAGES, log_format=LogFormat.JSON)
    pod = render.pod_template(model, read, images, render.pinned_batching(read))["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        told = {one["name"]: one.get("value") for one in container["env"]}
        assert told["BATCHEDMODEL_LOG_FORMAT"] == "json", container["name"]


def test_a_mesh_is_told_what_the_service_speaks() -> None:
    (port,) = render.service(*read_model(SIMULATED))["spec"]["ports"]
    assert (port["name"], port["appProtocol"]) == ("http", "http")


def test_the_service_has_the_families_that_the_manifest_says_or_those_of_the_cluster() -> None:
    said = {**SIMULATED, "service": {"ipFamilyPolicy": "PreferDualStack"}}
    assert render.service(*read_model(said))["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    assert "ipFamilyPolicy" not in render.service(*read_model(SIMULATED))["spec"]
