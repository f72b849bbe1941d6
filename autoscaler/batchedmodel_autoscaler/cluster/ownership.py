"""Whose a pod is: by owner references, and not by its label alone, which anybody there may set.

A pod is its ReplicaSet's, that is its Deployment's, and that is its BatchedModel's: by uid, each by
the reference of its controller, and all with the model's label. The four come by watches of their
own and so in any order; a pod is nobody's until the last of them has come.
"""

from collections.abc import Mapping, Set
from typing import TypeVar

from batchedmodel_autoscaler.cluster.objects import ModelKey, Owned

_T = TypeVar("_T")


class Ownership:
    """The references that were seen, and the pods that they lead from to a model."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, str] = {}
        self._between: dict[ModelKey, dict[str, Owned]] = {}
        """Deployments and ReplicaSets with a model's label, by uid."""
        self._labels: dict[str, ModelKey] = {}
        """The model whose label each of them has."""
        self._labelled: dict[ModelKey, dict[str, str]] = {}
        """The owners of pods that carry a model's label, by uid of the pod."""
        self._pods: dict[ModelKey, Set[str]] = {}
        """The pods of models since whose last change somebody asked for them."""
        self._sizes: dict[ModelKey, int] = {}
        self._changed: dict[ModelKey, None] = {}
        """Models whose sizes may be others by now."""

    def pods_of(self, key: ModelKey) -> Set[str]:
        """The uids of a model's pods."""
        found = self._pods.get(key)
        if found is None:
            labelled = self._labelled.get(key, ())
            found = self._pods[key] = {uid for uid in labelled if self.is_of(key, uid)}
        return found

    def sizes(self) -> Mapping[ModelKey, int]:
        """How many pods each model has that has any."""
        for key in self._changed:
            self._sizes.pop(key, None)
            if key in self._models and (count := len(self.pods_of(key))):
                self._sizes[key] = count
        self._changed.clear()
        return self._sizes

    def is_of(self, key: ModelKey, uid: str) -> bool:
        """Whether a pod is a model's."""
        between = self._between.get(key, {})
        replica_set = between.get(self._labelled.get(key, {}).get(uid, ""))
        deployment = None if replica_set is None else between.get(replica_set.owner)
        return deployment is not None and deployment.owner == self._models.get(key)

    def replicas_of(self, key: ModelKey) -> int | None:
        """How many pods a model's Deployment should have; None where it has none."""
        for owned in self._between.get(key, {}).values():
            if owned.replicas is not None and owned.owner == self._models.get(key):
                return owned.replicas
        return None

    def model_seen(self, key: ModelKey, uid: str) -> None:
        """A model is there, or has changed."""
        self._models[key] = uid
        self._forget(key)

    def model_gone(self, key: ModelKey) -> None:
        """A model is no more."""
        self._forget(key)
        self._models.pop(key, None)

    def seen(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is there, or has changed."""
        self.gone(owned)
        self._labels[owned.uid] = owned.model
        self._between.setdefault(owned.model, {})[owned.uid] = owned
        self._forget(owned.model)

    def gone(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is no more."""
        key = self._labels.pop(owned.uid, None)
        if key is not None:
            _drop(self._between, key, owned.uid)
            self._forget(key)

    def pod_seen(self, key: ModelKey, uid: str, owner: str) -> None:
        """A pod with the model's label is there, or has changed."""
        labelled = self._labelled.setdefault(key, {})
        if labelled.get(uid) != owner:
            labelled[uid] = owner
            self._forget(key)

    def pod_gone(self, key: ModelKey, uid: str) -> None:
        """Such a pod is no more, or has the label of another model."""
        _drop(self._labelled, key, uid)
        self._forget(key)

    def _forget(self, key: ModelKey) -> None:
        self._pods.pop(key, None)
        if key in self._models:  # names that no model has are without number
            self._changed[key] = None


def _drop(of: dict[ModelKey, dict[str, _T]], key: ModelKey, uid: str) -> None:
    of.get(key, {}).pop(uid, None)
    if not of.get(key):
        of.pop(key, None)
