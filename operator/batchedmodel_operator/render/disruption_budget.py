"""The PodDisruptionBudget: how many pods those may evict at a time who drain nodes."""

from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.manifest.workload import BudgetMode
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile import effective
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.common import Manifest, child, selector

_FEWEST_PODS = 2


def needs_disruption_budget(spec: Spec) -> bool:
    """Whether there may be pods enough for some of them to be kept while others go."""
    wanted = spec.disruption.pod_disruption_budget is BudgetMode.AUTO
    return wanted and effective.most_replicas(spec) >= _FEWEST_PODS


def disruption_budget(model: Model, spec: Spec) -> Manifest:
    """The budget. Pods that do not serve are not worth protecting: no node waits for them."""
    body = {
        "selector": {"matchLabels": selector(model)},
        "maxUnavailable": spec.disruption.max_unavailable,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return child(model, Kind.DISRUPTION_BUDGET, spec=body)
