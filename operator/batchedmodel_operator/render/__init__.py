"""Manifests of a BatchedModel's children, as pure functions of the BatchedModel and of settings."""

from batchedmodel_operator.render.autoscaler import autoscaler
from batchedmodel_operator.render.children import (
    config_map,
    deployment,
    disruption_budget,
    images_of,
    pinned_batching,
    pod_template,
    revision,
    revision_child,
    revision_name,
    said_of_pods,
    seed,
    service,
    upgraded_name,
)
from batchedmodel_operator.render.containers import Images, PinnedBatching

__all__ = [
    "Images",
    "PinnedBatching",
    "autoscaler",
    "config_map",
    "deployment",
    "disruption_budget",
    "images_of",
    "pinned_batching",
    "pod_template",
    "revision",
    "revision_child",
    "revision_name",
    "said_of_pods",
    "seed",
    "service",
    "upgraded_name",
]
