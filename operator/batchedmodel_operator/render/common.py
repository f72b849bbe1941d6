"""The head that all children share."""

from typing import Any

from batchedmodel_kube.names import MANAGED_BY, MANAGED_BY_LABEL, NAME_LABEL
from batchedmodel_operator.kinds import RESOURCES, Kind, child_name
from batchedmodel_operator.observed.state import Model

Manifest = dict[str, Any]


def labels(model: Model) -> dict[str, str]:
    """On every child and every pod; the operator watches by the second of them."""
    return {NAME_LABEL: model.key.name, MANAGED_BY_LABEL: MANAGED_BY}


def recommended_labels(model: Model) -> dict[str, str]:
    """What tools and people look for on pods; the manifest's own labels stand above them."""
    return {
        "app.kubernetes.io/name": "batchedmodel",
        "app.kubernetes.io/instance": model.key.name,
        "app.kubernetes.io/component": "model",
        "app.kubernetes.io/part-of": "batchedmodel",
    }


def selector(model: Model) -> dict[str, str]:
    """What finds the pods. A Deployment's can never be changed, so it holds one label only."""
    return {NAME_LABEL: model.key.name}


def child(model: Model, kind: Kind, **parts: Any) -> Manifest:
    """A manifest whose owner reference lets Kubernetes delete it with the BatchedModel."""
    owner = {
        "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
        "kind": Kind.BATCHED_MODEL.value,
        "name": model.key.name,
        "uid": model.uid,
        # No blockOwnerDeletion: some clusters demand rights on finalizers for it, and deletion in
        # the background does not heed it.
        "controller": True,
    }
    return {
        "apiVersion": RESOURCES[kind].api_version,
        "kind": kind.value,
        "metadata": {
            "name": child_name(kind, model.key.name),
            "namespace": model.key.namespace,
            "labels": labels(model),
            "ownerReferences": [owner],
        },
        **parts,
    }
