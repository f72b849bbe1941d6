"""A namespace with one BatchedModel in it, as a person works with it through kubectl."""

import json
import time
from collections.abc import Mapping
from typing import Any

from batchedmodel_contract.manifest.batching import settings_from_json
from batchedmodel_operator.kinds import FIELD_MANAGER, SEED_MANAGER
from cluster import CommandFailed, ControlPlane
from support.plane import apply, get, read, until

CHILDREN = ("deployment/minilm", "service/minilm", "configmap/minilm-batching")
_OTHERS = ("hpa/minilm", "pdb/minilm", "batchedmodel/minilm")
SIMULATED: dict[str, Any] = {"model": {"handler": "simulated"}}


class Team:
    """A namespace with one BatchedModel in it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace

    def write(self, spec: Mapping[str, Any]) -> None:
        """A person applies the manifest."""
        head = {"apiVersion": "batchedmodel.dev/v1alpha1", "kind": "BatchedModel"}
        metadata = {"name": "minilm", "namespace": self.namespace}
        apply(self.plane, {**head, "metadata": metadata, "spec": spec})

    def get(self, what: str, **selectors: str) -> Any:
        """See `plane.get`."""
        return get(self.plane, self.namespace, what, **selectors)

    def patch(self, what: str, change: Mapping[str, Any], *words: str) -> None:
        self.plane.kubectl(
            *("patch", what, f"--namespace={self.namespace}", "--type=merge"),
            *("--patch", json.dumps(change), *words),
        )

    def has_all(self, *children: str) -> bool:
        wanted = children or CHILDREN
        try:
            return len(self._there(*wanted)) == len(wanted)
        except CommandFailed:  # the API server is away
            return False

    def has_none(self, *children: str) -> bool:
        """Whether all of them are gone; an API server that is away does not say so."""
        return not self._there(*children)

    def _there(self, *children: str) -> list[str]:
        return [one for one in children if read(self.plane, self.namespace, one) is not None]

    def condition(self, name: str) -> tuple[str, str]:
        """A condition's status and reason, once it speaks of the present generation."""
        model = self.get("batchedmodel/minilm") or {}
        for one in model.get("status", {}).get("conditions", []):
            if one["type"] == name and one["observedGeneration"] == model["metadata"]["generation"]:
                return one["status"], one["reason"]
        return "", ""

    def message(self, name: str) -> str:
        """The sentence of a condition."""
        model = self.get("batchedmodel/minilm") or {}
        conditions = model.get("status", {}).get("conditions", [])
        return next((str(one["message"]) for one in conditions if one["type"] == name), "")

    def events(self) -> list[tuple[str, str]]:
        """Type and reason of each Event about the BatchedModel."""
        found = self.get("events", field="involvedObject.kind=BatchedModel") or {"items": []}
        return [(one["type"], one["reason"]) for one in found["items"]]

    def until(self, condition: str, status: str, reason: str, seconds: float = 60) -> None:
        model = ""
        try:
            until("", lambda: self.condition(condition) == (status, reason), seconds)
        except AssertionError:
            model = json.dumps((self.get("batchedmodel/minilm") or {}).get("status"), indent=1)
            raise AssertionError(f"{condition} is not {status}/{reason}: {model}") from None

    def left(self) -> list[str]:
        """Whatever stands in the namespace that Kubernetes has not put there by itself."""
        kinds = ("deployments", "replicasets", "pods", "services", "configmaps", "hpa", "pdb")
        names = [
            f"{kind}/{one['metadata']['name']}"
            for kind in kinds
            for one in (read(self.plane, self.namespace, kind) or {"items": []})["items"]
        ]
        return [name for name in names if name != "configmaps/kube-root-ca.crt"]

    def versions(self) -> dict[str, str]:
        """What every write to the BatchedModel or a child would change."""
        return {
            name: body["metadata"]["resourceVersion"] for name, body in self._everything().items()
        }

    def written(self) -> dict[str, Any]:
        """What every write of the operator to the BatchedModel or a child would change.

        Its own entry among the managers has the second of its last write that changed anything.
        Others may write meanwhile: a Deployment's controller brings its status up to date.
        """
        return {
            name: (
                body["metadata"]["uid"],
                body["metadata"].get("generation"),
                [
                    entry
                    for entry in body["metadata"]["managedFields"]
                    if entry["manager"] in (FIELD_MANAGER, SEED_MANAGER)
                ],
            )
            for name, body in self._everything().items()
        }

    def _everything(self) -> dict[str, dict[str, Any]]:
        """Those of the BatchedModel and all its children that are there, by name.

        Raises:
            CommandFailed: the API server did not say; to whoever waits for quiet, two such looks
                would be alike.
        """
        found = {name: read(self.plane, self.namespace, name) for name in (*CHILDREN, *_OTHERS)}
        return {name: body for name, body in found.items() if body is not None}

    def quiet(self) -> dict[str, str]:
        """The versions, once nothing has changed for a while."""
        before = self.versions()
        for _ in range(20):
            time.sleep(1.5)
            now = self.versions()
            if now == before:
                return now
            before = now
        raise AssertionError("something goes on writing")

    def settings_file(self) -> str:
        """The batch settings that the pods are given."""
        text: str = self.get("configmap/minilm-batching")["data"]["batching.json"]
        return text

    def settings(self) -> str:
        """The hash by which everybody names them."""
        return settings_from_json(self.settings_file()).digest()
