"""Manifests of a BatchedModel's children, as pure functions of the BatchedModel and of settings."""

from batchedmodel_operator.render.autoscaler import autoscaler
from batchedmodel_operator.render.config_map import config_map
from batchedmodel_operator.render.containers import PinnedBatching
from batchedmodel_operator.render.deployment import (
    deployment,
    pinned_batching,
    pod_template,
    revision,
    seed,
)
from batchedmodel_operator.render.disruption_budget import (
    disruption_budget,
    needs_disruption_budget,
)
from batchedmodel_operator.render.kept_template import revision_child, revision_name
from batchedmodel_operator.render.pod import Images
from batchedmodel_operator.render.service import service

__all__ = [
    "Images",
    "PinnedBatching",
    "autoscaler",
    "config_map",
    "deployment",
    "disruption_budget",
    "needs_disruption_budget",
    "pinned_batching",
    "pod_template",
    "revision",
    "revision_child",
    "revision_name",
    "seed",
    "service",
]
