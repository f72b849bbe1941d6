"""Where pods run: on which nodes, spread in which way, by whose leave."""

from typing import Any, Final

from batchedmodel_contract.kubernetes.names import PRODUCT_LABEL
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.common import Manifest, selector

_SPREAD_OVER: Final = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def placement(model: Model, spec: Spec) -> Manifest:
    """Those fields of a pod's `spec` that say so; none that would be empty."""
    given = {
        "nodeSelector": dict(spec.pod.node_selector),
        "tolerations": _tolerations(spec),
        "affinity": _affinity(spec),
        "topologySpreadConstraints": _spread(model, spec),
        "priorityClassName": spec.pod.priority_class_name,
        "runtimeClassName": spec.pod.runtime_class_name,
        "schedulerName": spec.pod.scheduler_name,
        "serviceAccountName": spec.pod.service_account_name,
        "imagePullSecrets": [{"name": name} for name in spec.pod.image_pull_secrets],
    }
    return {name: value for name, value in given.items() if value}


def _tolerations(spec: Spec) -> list[object]:
    given = list(spec.pod.tolerations or ())
    accelerator = spec.accelerator
    if accelerator is None or not accelerator.tolerate:
        return given
    # Of that effect only: who takes devices out of service evicts with NoExecute.
    own = {"key": accelerator.resource, "operator": "Exists", "effect": "NoSchedule"}
    return [*given, own]


def _affinity(spec: Spec) -> Manifest | None:
    given: Manifest | None = spec.pod.affinity
    if spec.accelerator is None or not spec.accelerator.product_labels:
        return given
    products = list(spec.accelerator.product_labels)
    wanted = {"key": PRODUCT_LABEL, "operator": "In", "values": products}
    return _also_required(given or {}, wanted)


def _also_required(affinity: Manifest, wanted: Manifest) -> Manifest:
    """The affinity with one more demand on the node, in each of its alternatives."""
    node: Any = affinity.get("nodeAffinity") or {}
    required = node.get(_REQUIRED) or {}
    terms = [
        term | {"matchExpressions": [*(term.get("matchExpressions") or ()), wanted]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    required = required | {"nodeSelectorTerms": terms}
    return affinity | {"nodeAffinity": node | {_REQUIRED: required}}


def _spread(model: Model, spec: Spec) -> list[Manifest]:
    pods = {"labelSelector": {"matchLabels": selector(model)}}
    given: list[Any] | None = spec.pod.topology_spread_constraints
    if given is not None:
        return [pods | one for one in given]
    return [
        {"maxSkew": 1, "topologyKey": topology, "whenUnsatisfiable": "ScheduleAnyway", **pods}
        for topology in _SPREAD_OVER
    ]
