"""The documents of `custom.metrics.k8s.io` and `external.metrics.k8s.io`, and `Status`. Pure."""

import math
from datetime import UTC, datetime
from typing import Any, Final

from batchedmodel_autoscaler.cluster.objects import ModelKey
from batchedmodel_autoscaler.cluster.resources import METRICS_VERSIONS
from batchedmodel_autoscaler.errors import RefusedAnswer
from batchedmodel_kube.names import (
    API_VERSION,
    CONCURRENCY_METRIC,
    EXTERNAL_METRICS_GROUP,
    GROUP,
    KIND,
    METRICS_GROUP,
    MODEL_METRIC_LABEL,
    PLURAL,
    QUEUE_LENGTH_METRIC,
    QUEUE_TIME_METRIC,
    REQUIRED_REPLICAS_METRIC,
)

Document = dict[str, Any]

RESOURCE: Final = f"{PLURAL}.{GROUP}"
METRICS: Final = (
    REQUIRED_REPLICAS_METRIC,
    QUEUE_LENGTH_METRIC,
    CONCURRENCY_METRIC,
    QUEUE_TIME_METRIC,
)


def resource_list(group: str, version: str) -> Document:
    """Discovery of one version of a group."""
    # A custom metric is something's, an external one stands for itself.
    kind, owner = "ExternalMetricValueList", ""
    if group == METRICS_GROUP:
        kind, owner = "MetricValueList", f"{RESOURCE}/"
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}",
        "resources": [
            {
                "name": f"{owner}{metric}",
                "singularName": "",
                "namespaced": True,
                "kind": kind,
                "verbs": ["get"],
            }
            for metric in METRICS
        ],
    }


def group(name: str) -> Document:
    """Discovery of a group."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name)}


def group_list() -> Document:
    """Discovery of all groups, registered or not."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name) for name in METRICS_VERSIONS],
    }


def _group(name: str) -> Document:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version in METRICS_VERSIONS[name]
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def metric_values(
    version: str, model: ModelKey, metric: str, value: float, taken: datetime, window_seconds: int
) -> Document:
    """The answer to an HPA: a list of exactly one value, which a model had at one moment."""
    item: Document = {
        "describedObject": {
            "kind": KIND,
            "namespace": model.namespace,
            "name": model.name,
            "apiVersion": API_VERSION,
        },
        "timestamp": _time(taken),
        "value": quantity(value),
    }
    if version == "v1beta1":
        item |= {"metricName": metric, "window": window_seconds}
    else:
        item |= {"metric": {"name": metric, "selector": None}, "windowSeconds": window_seconds}
    return _list("MetricValueList", f"{METRICS_GROUP}/{version}", item)


def external_values(
    version: str, model: ModelKey, metric: str, value: float, taken: datetime, window_seconds: int
) -> Document:
    """The same as an external metric. An HPA would sum several values, and there is one."""
    item = {
        "metricName": metric,
        "metricLabels": {MODEL_METRIC_LABEL: model.name},
        "timestamp": _time(taken),
        "window": window_seconds,
        "value": quantity(value),
    }
    return _list("ExternalMetricValueList", f"{EXTERNAL_METRICS_GROUP}/{version}", item)


def _list(kind: str, api_version: str, item: Document) -> Document:
    return {"kind": kind, "apiVersion": api_version, "metadata": {}, "items": [item]}


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def quantity(value: float) -> str:
    """A Kubernetes quantity: whole, or in thousandths, rounded up so that little is not nothing."""
    thousandths = math.ceil(value * 1000 - 1e-6)
    whole, rest = divmod(thousandths, 1000)
    return f"{thousandths}m" if rest else f"{whole}"


def status(error: RefusedAnswer) -> Document:
    """An error as Kubernetes' clients read it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": error.reason,
        "code": error.code,
    }
