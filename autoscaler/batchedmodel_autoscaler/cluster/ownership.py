"""Whose a pod is: by owner references, and not by its label, which anybody there may set.

A pod is its ReplicaSet's, that is its Deployment's, and that is its BatchedModel's: by uid, each by
the reference of its controller. The four come by watches of their own and so in any order; whatever
is still missing makes a pod nobody's until it comes. Part of `fleet`.
"""

from collections import Counter
from collections.abc import Set

from batchedmodel_autoscaler.cluster.objects import ModelKey, Owned


class Ownership:
    """The references that were seen, and the pods that they lead from to a model."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, str] = {}
        self._between: dict[str, Owned] = {}
        """Deployments and ReplicaSets, by uid."""
        self._labelled: dict[ModelKey, dict[str, str]] = {}
        """The owners of pods that carry a model's label, by uid of the pod."""
        self._pods: dict[ModelKey, set[str]] = {}
        self.count = 0
        """Pods that are a model's."""
        self.sizes: Counter[ModelKey] = Counter()
        """How many each model has; none without any is in it."""

    def pods_of(self, key: ModelKey) -> Set[str]:
        """The uids of a model's pods."""
        return self._pods.get(key, frozenset())

    def is_of(self, key: ModelKey, uid: str) -> bool:
        """Whether a pod is a model's."""
        return uid in self.pods_of(key)

    def deployment_of(self, key: ModelKey, uid: str) -> bool:
        """Whether a Deployment is a model's."""
        found = self._between.get(uid)
        return found is not None and found.owner == self._models.get(key)

    def model_seen(self, key: ModelKey, uid: str) -> None:
        """A model is there."""
        self._models[key] = uid
        self._judge_all(key)

    def model_gone(self, key: ModelKey) -> None:
        """A model is no more."""
        self._models.pop(key, None)
        self._judge_all(key)

    def seen(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is there, or has changed."""
        before = self._between.get(owned.uid)
        self._between[owned.uid] = owned
        for key in {owned.model} | ({before.model} if before else set()):
            self._judge_all(key)

    def gone(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is no more."""
        if self._between.pop(owned.uid, None) is not None:
            self._judge_all(owned.model)

    def pod_seen(self, key: ModelKey, uid: str, owner: str) -> None:
        """A pod with the model's label is there, or has changed."""
        self._labelled.setdefault(key, {})[uid] = owner
        self._judge(key, uid)

    def pod_gone(self, key: ModelKey, uid: str) -> None:
        """Such a pod is no more, or has the label of another model."""
        labelled = self._labelled.get(key, {})
        if labelled.pop(uid, None) is not None:
            self._judge(key, uid)
        if not labelled:
            self._labelled.pop(key, None)

    def _judge_all(self, key: ModelKey) -> None:
        for uid in self._labelled.get(key, ()):
            self._judge(key, uid)

    def _judge(self, key: ModelKey, uid: str) -> None:
        pods = self._pods.setdefault(key, set())
        before = len(pods)
        if self._leads_to_model(key, uid):
            pods.add(uid)
        else:
            pods.discard(uid)
        self.count += len(pods) - before
        self.sizes[key] = len(pods)
        if not pods:
            del self._pods[key], self.sizes[key]

    def _leads_to_model(self, key: ModelKey, uid: str) -> bool:
        replica_set = self._between.get(self._labelled.get(key, {}).get(uid, ""))
        return replica_set is not None and self.deployment_of(key, replica_set.owner)
