"""What is said to the API server, in the words of both versions, and whom is listened to."""

import base64
from datetime import UTC, datetime

import pytest

from batchedmodel_autoscaler.cluster.objects import (
    FrontProxy,
    ModelKey,
    Owned,
    read_api_service,
    read_front_proxy,
    read_model,
    read_owned,
    read_pod,
)
from batchedmodel_autoscaler.errors import MetricsUnavailable, RefusedAnswer, Untrusted
from batchedmodel_autoscaler.metrics_api import documents
from batchedmodel_autoscaler.metrics_api.server import require_front_proxy, selected_model
from batchedmodel_autoscaler.replicas.formula import Target
from batchedmodel_kube.capacity import Capacity
from batchedmodel_kube.names import (
    EXTERNAL_METRICS_GROUP,
    METRICS_GROUP,
    NAME_LABEL,
    REQUIRED_REPLICAS_METRIC,
)

KEY = ModelKey("team", "minilm")
TAKEN = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC)
MEASURED = (KEY, REQUIRED_REPLICAS_METRIC, 3, TAKEN, 60)
DESCRIBED = {
    "kind": "BatchedModel",
    "namespace": "team",
    "name": "minilm",
    "apiVersion": "batchedmodel.dev/v1alpha1",
}


def test_a_value_in_the_newer_version() -> None:
    assert documents.metric_values("v1beta2", *MEASURED) == {
        "kind": "MetricValueList",
        "apiVersion": "custom.metrics.k8s.io/v1beta2",
        "metadata": {},
        "items": [
            {
                "describedObject": DESCRIBED,
                "metric": {"name": REQUIRED_REPLICAS_METRIC, "selector": None},
                "timestamp": "2026-11-20T10:00:00Z",
                "windowSeconds": 60,
                "value": "3",
            }
        ],
    }


def test_a_value_in_the_older_version() -> None:
    (item,) = documents.metric_values("v1beta1", *MEASURED)["items"]
    assert item == {
        "describedObject": DESCRIBED,
        "metricName": REQUIRED_REPLICAS_METRIC,
        "timestamp": "2026-11-20T10:00:00Z",
        "window": 60,
        "value": "3",
    }


def test_an_external_value_is_labelled_with_its_model() -> None:
    assert documents.external_values("v1beta1", *MEASURED) == {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {
                "metricName": REQUIRED_REPLICAS_METRIC,
                "metricLabels": {"model": "minilm"},
                "timestamp": "2026-11-20T10:00:00Z",
                "window": 60,
                "value": "3",
            }
        ],
    }


def test_discovery_of_external_metrics_names_each_by_itself() -> None:
    found = documents.resource_list(EXTERNAL_METRICS_GROUP, "v1beta1")
    assert found["groupVersion"] == "external.metrics.k8s.io/v1beta1"
    assert [one["name"] for one in found["resources"]] == [*documents.METRICS]
    assert {one["kind"] for one in found["resources"]} == {"ExternalMetricValueList"}
    assert all(one["namespaced"] for one in found["resources"])


def test_a_selector_names_one_model() -> None:
    assert selected_model("model=minilm") == "minilm"
    assert selected_model("model=a.b-1") == "a.b-1"


@pytest.mark.parametrize(
    "selector",
    [
        *("", "model", "model=", "model!=minilm", "model in (minilm)", "model=a,model=b"),
        *("name=minilm", "model=minilm,team=a", "!model", "model=../other/minilm"),
    ],
)
def test_no_other_selector_is_answered(selector: str) -> None:
    with pytest.raises(RefusedAnswer, match="it must be model=NAME") as refused:
        selected_model(selector)
    assert refused.value.code == 400


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_discovery_names_each_metric_of_a_model(version: str) -> None:
    found = documents.resource_list(METRICS_GROUP, version)
    assert found["groupVersion"] == f"custom.metrics.k8s.io/{version}"
    assert [resource["name"] for resource in found["resources"]] == [
        "batchedmodels.batchedmodel.dev/batchedmodel_required_replicas",
        "batchedmodels.batchedmodel.dev/batchedmodel_queue_length",
        "batchedmodels.batchedmodel.dev/batchedmodel_concurrency",
        "batchedmodels.batchedmodel.dev/batchedmodel_queue_time_seconds",
    ]
    assert all(resource["verbs"] == ["get"] for resource in found["resources"])


def test_the_group_prefers_the_newer_version() -> None:
    assert documents.group(METRICS_GROUP)["preferredVersion"]["version"] == "v1beta2"
    custom, external = documents.group_list()["groups"]
    assert [one["version"] for one in custom["versions"]] == ["v1beta2", "v1beta1"]
    assert [one["version"] for one in external["versions"]] == ["v1beta1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (4, "4"), (4.27, "4270m"), (0.0001, "1m"), (1234567.0, "1234567")],
)
def test_quantities(value: float, text: str) -> None:
    assert documents.quantity(value) == text


def test_an_error_is_a_status() -> None:
    assert documents.status(MetricsUnavailable("none answers")) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "none answers",
        "reason": "ServiceUnavailable",
        "code": 503,
    }


# Whom is listened to.

FRONT = FrontProxy(authority="PEM", allowed_names=("aggregator",), user_headers=("X-Remote-User",))
PEER = {"subject": ((("organizationName", "x"),), (("commonName", "aggregator"),))}
USER = {"X-Remote-User": "system:kube-aggregator"}


def test_a_request_that_was_passed_on_is_listened_to() -> None:
    require_front_proxy(FRONT, PEER, USER)


def test_no_list_of_names_allows_all_that_the_authority_vouches_for() -> None:
    front = FrontProxy(authority="PEM", allowed_names=(), user_headers=("X-Remote-User",))
    require_front_proxy(front, {"subject": ((("commonName", "any"),),)}, USER)


@pytest.mark.parametrize(
    ("front", "peer", "headers", "message"),
    [
        pytest.param(FRONT, None, USER, "client certificate", id="none shown"),
        pytest.param(FRONT, {}, USER, "client certificate", id="none verified"),
        pytest.param(
            FRONT, {"subject": ((("commonName", "x"),),)}, USER, '"x" is not allowed', id="name"
        ),
        pytest.param(FRONT, {"subject": ()}, USER, '"" is not allowed', id="no name"),
        pytest.param(FRONT, PEER, {}, "which user", id="no user"),
        pytest.param(read_front_proxy({}), PEER, USER, "does not pass", id="no aggregation"),
    ],
)
def test_nobody_else_is(front, peer, headers, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Untrusted, match=message):
        require_front_proxy(front, peer, headers)


# What objects say.


def test_the_front_proxy_is_read_from_its_config_map() -> None:
    data = {
        "requestheader-client-ca-file": "PEM",
        "requestheader-allowed-names": '["aggregator"]',
        "requestheader-username-headers": '["X-Remote-User"]',
    }
    assert read_front_proxy({"data": data}) == FRONT


def wishes(**spec: object) -> Target:
    metadata = {"namespace": "team", "name": "minilm", "uid": "u"}
    return read_model({"metadata": metadata, "spec": {"model": {}, **spec}}).target


def test_a_model_without_wishes_has_the_defaults() -> None:
    assert wishes() == Target(
        utilization=0.8, queue_length=32, outstanding=32, queue_wait_seconds=0.5
    )


def test_targets_that_are_not_given_follow_the_batching() -> None:
    found = wishes(batching={"maxBatchSize": 64, "targetLatencyMilliseconds": 150})
    assert (found.queue_length, found.outstanding, found.queue_wait_seconds) == (64, 64, 0.075)


def test_the_rows_outstanding_are_as_many_as_all_workers_hold() -> None:
    found = wishes(batching={"maxBatchSize": 16, "maxConcurrentBatches": 4})
    assert (found.queue_length, found.outstanding) == (16, 64)


def test_targets_that_are_given_hold() -> None:
    assert wishes(autoscaling={"targetUtilizationPercent": 65}).utilization == 0.65
    assert wishes(autoscaling={"targetQueueLength": 7}).queue_length == 7
    assert wishes(autoscaling={"targetConcurrency": 9}).outstanding == 9
    assert wishes(autoscaling={"targetQueueTimeMilliseconds": 20}).queue_wait_seconds == 0.02


POD = {
    "metadata": {
        "uid": "u", "namespace": "team", "name": "minilm-1", "labels": {NAME_LABEL: "minilm"},
        "creationTimestamp": "2026-11-20T10:00:00Z",
    },
    "status": {
        "phase": "Running", "podIP": "10.0.0.1",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T10:01:15Z"},
        ],
    },
}  # fmt: skip


def test_a_ready_pod_tells_how_long_it_took() -> None:
    read = read_pod(POD)
    assert (read.model, read.address, read.ready, read.leaving) == (KEY, "10.0.0.1", True, False)
    assert read.startup_seconds == 75.0


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_how_far_the_clocks_of_a_node_and_the_api_server_differ_changes_no_start(
    hours: int,
) -> None:
    def at(minute: int, second: int, *, by_node: bool = False) -> str:
        hour = 10 + (hours if by_node else 0)
        return f"2026-11-20T{hour:02}:{minute:02}:{second:02}Z"

    ready = at(1, 15, by_node=True)
    status = {
        "startTime": at(0, 21, by_node=True),
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(0, 20)},
            {"type": "Ready", "status": "True", "lastTransitionTime": ready},
        ],
    }
    found = read_pod({"metadata": POD["metadata"], "status": status})
    assert found.startup_seconds == 20 + 54


def test_a_pod_that_has_been_ready_before_is_not_fresh() -> None:
    def fresh(**status: object) -> bool:
        return read_pod({"metadata": POD["metadata"], "status": status}).fresh

    began = "2026-11-20T10:00:30Z"
    waits = {"type": "Ready", "status": "False", "lastTransitionTime": began}
    fell = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-20T11:00:00Z"}
    assert fresh()
    assert fresh(startTime=began, conditions=[waits])
    assert not fresh(startTime=began, conditions=[fell])
    assert not read_pod(POD).fresh


def test_a_model_tells_what_its_status_remembers() -> None:
    metadata = {"namespace": "team", "name": "minilm", "uid": "u"}
    status = {"capacity": {"revision": "a", "startupSeconds": 90}}
    read = read_model({"metadata": metadata, "spec": {}, "status": status})
    assert (read.uid, read.capacity) == ("u", Capacity(revision="a", startup_seconds=90.0))


def test_a_new_pod_has_no_address_and_is_not_ready() -> None:
    read = read_pod({"metadata": POD["metadata"]})
    assert (read.address, read.ready, read.startup_seconds) == ("", False, None)


def test_a_finished_pod_is_asked_no_more() -> None:
    status = {"phase": "Failed", "podIP": "10.0.0.1"}
    assert read_pod({"metadata": POD["metadata"], "status": status}).address == ""


def test_a_size_is_what_the_deployment_is_to_have() -> None:
    owners = [{"uid": "elsewhere"}, {"uid": "model", "controller": True}]
    labels = {NAME_LABEL: "minilm"}
    metadata = {"namespace": "team", "uid": "u", "labels": labels, "ownerReferences": owners}
    found = {"metadata": metadata, "spec": {"replicas": 3}, "status": {"replicas": 4}}
    assert read_owned(found) == Owned(uid="u", model=KEY, owner="model", replicas=3)


def test_an_api_service_of_the_api_server_itself_is_nobodys() -> None:
    metadata = {"name": "n", "uid": "u", "resourceVersion": "1"}
    assert read_api_service({"metadata": metadata, "spec": {}}).service == ""
    bundle = base64.b64encode(b"PEM").decode()
    spec = {"caBundle": bundle, "service": {"namespace": "ns", "name": "svc"}}
    read = read_api_service({"metadata": metadata, "spec": spec})
    assert (read.namespace, read.service, read.bundle) == ("ns", "svc", b"PEM")
