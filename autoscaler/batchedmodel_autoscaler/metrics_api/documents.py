"""The documents of `custom.metrics.k8s.io`, in both of its versions, and `Status`. Pure."""

import math
from datetime import UTC, datetime
from typing import Any, Final

from batchedmodel_autoscaler.cluster.objects import ModelKey
from batchedmodel_autoscaler.cluster.resources import METRICS_VERSIONS
from batchedmodel_autoscaler.errors import RefusedAnswer
from batchedmodel_contract.kubernetes.names import (
    CONCURRENCY_METRIC,
    GROUP,
    METRICS_GROUP,
    PLURAL,
    QUEUE_LENGTH_METRIC,
    QUEUE_TIME_METRIC,
    REQUIRED_REPLICAS_METRIC,
)
from batchedmodel_contract.manifest.manifest import API_VERSION, KIND

Document = dict[str, Any]

RESOURCE: Final = f"{PLURAL}.{GROUP}"
METRICS: Final = (
    REQUIRED_REPLICAS_METRIC,
    QUEUE_LENGTH_METRIC,
    CONCURRENCY_METRIC,
    QUEUE_TIME_METRIC,
)


def resource_list(version: str) -> Document:
    """Discovery of one version."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{METRICS_GROUP}/{version}",
        "resources": [
            {
                "name": f"{RESOURCE}/{metric}",
                "singularName": "",
                "namespaced": True,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            for metric in METRICS
        ],
    }


def group() -> Document:
    """Discovery of the group."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group()}


def group_list() -> Document:
    """Discovery of all groups, which are one."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]}


def _group() -> Document:
    versions = [
        {"groupVersion": f"{METRICS_GROUP}/{version}", "version": version}
        for version in METRICS_VERSIONS
    ]
    return {"name": METRICS_GROUP, "versions": versions, "preferredVersion": versions[0]}


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
        "timestamp": taken.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": quantity(value),
    }
    if version == "v1beta1":
        item |= {"metricName": metric, "window": window_seconds}
    else:
        item |= {
            "metric": {"name": metric, "selector": None},
            "windowSeconds": window_seconds,
        }
    return {
        "kind": "MetricValueList",
        "apiVersion": f"{METRICS_GROUP}/{version}",
        "metadata": {},
        "items": [item],
    }


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
