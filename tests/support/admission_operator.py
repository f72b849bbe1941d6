"""Objects such as the operator makes of models, and what admission answers its account."""

import json
from typing import Any

from batchedmodel_operator.kinds import RESOURCES, Kind
from cluster import CommandFailed
from support.admission_users import TEAM
from support.plane import Manifest
from support.release import Release

LABELS = {"batchedmodel.dev/name": "owning"}
_TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}
IN_POD = {"containers": [{"name": "model", "image": "registry.example/image:1"}]}
_TEMPLATE = {"metadata": {"labels": LABELS}, "spec": IN_POD}
_SELECTED = {"selector": {"matchLabels": LABELS}}
LEAST: dict[Kind, Manifest] = {
    Kind.CONFIG_MAP: {},
    Kind.SERVICE: {"spec": {"selector": LABELS, "ports": [{"port": 80}]}},
    Kind.DEPLOYMENT: {"spec": {**_SELECTED, "replicas": 0, "template": _TEMPLATE}},
    Kind.AUTOSCALER: {"spec": {"scaleTargetRef": _TARGET, "maxReplicas": 2}},
    Kind.DISRUPTION_BUDGET: {"spec": _SELECTED},
    Kind.CONTROLLER_REVISION: {"revision": 1, "data": {}},
}
"""What an object of each kind that the operator makes must have."""
NOT_OF_PODS: dict[str, Manifest] = {
    "an image": {"spec": {"containers": [{"name": "model", "image": "registry.example/mine:1"}]}},
    "a deadline": {"spec": {**IN_POD, "activeDeadlineSeconds": 1}},
    "a label": {"metadata": {"labels": {"app": "pay"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/kept"]}},
    "an owner": {"metadata": {"ownerReferences": [{**_TARGET, "uid": "none"}]}},
}
APPLY = ("apply", "--server-side", "--force-conflicts", "--field-manager=batchedmodel")
REFUSED = "has a BatchedModel for its controller"


def object_of(kind: Kind, name: str, *owners: Manifest, **parts: Any) -> Manifest:
    metadata = {"name": name, "namespace": TEAM, "ownerReferences": [*owners]}
    head = {"apiVersion": RESOURCES[kind].api_version, "kind": kind.value, "metadata": metadata}
    return {**head, **LEAST.get(kind, {}), **parts}


def refusal_of_operator(release: Release, *words: str, body: Manifest | None = None) -> str:
    """What the API server answers a thief of the operator's token; empty: it does it."""
    user = f"--as={release.user('operator')}"
    file = () if body is None else ("--filename=-",)
    words = (*words, *file, f"--namespace={TEAM}", user, "--dry-run=server")
    try:
        release.plane.kubectl(*words, stdin=None if body is None else json.dumps(body))
    except CommandFailed as error:
        return str(error)
    return ""
