"""Whose a pod is: by owner references, and not by its label, which anybody there may set.

A pod is its ReplicaSet's, that is its Deployment's, and that is its BatchedModel's: by uid, each by
the reference of its controller. The four come by watches of their own and so in any order; whatever
is still missing makes a pod nobody's until it comes. Part of `fleet`.

Each change has only those pods judged anew that it can concern. A list of thousands of objects is
taken in without leaving the event loop.
"""

from collections import Counter
from collections.abc import Hashable, Set
from typing import Generic, TypeVar

from batchedmodel_autoscaler.cluster.objects import ModelKey, Owned

Thing = TypeVar("Thing", bound=Hashable)


class _Owned(Generic[Thing]):
    """What each owner has, by the owner's uid."""

    def __init__(self) -> None:
        self._things: dict[str, set[Thing]] = {}

    def of(self, owner: str) -> Set[Thing]:
        return self._things.get(owner, frozenset())

    def add(self, owner: str, thing: Thing) -> None:
        if owner:
            self._things.setdefault(owner, set()).add(thing)

    def drop(self, owner: str, thing: Thing) -> None:
        things = self._things.get(owner, set())
        things.discard(thing)
        if not things:
            self._things.pop(owner, None)


class Ownership:
    """The references that were seen, and the pods that they lead from to a model."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, str] = {}
        self._between: dict[str, Owned] = {}
        """Deployments and ReplicaSets, by uid."""
        self._below: _Owned[str] = _Owned()
        """Their uids."""
        self._labelled: dict[ModelKey, dict[str, str]] = {}
        """The owners of pods that carry a model's label, by uid of the pod."""
        self._pods_below: _Owned[tuple[ModelKey, str]] = _Owned()
        """Those pods' uids, each with the model of its label."""
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
        """A model is there, or has changed."""
        if self._models.get(key) != uid:
            self._models[key] = uid
            self._judge_labelled(key)

    def model_gone(self, key: ModelKey) -> None:
        """A model is no more."""
        if self._models.pop(key, None) is not None:
            self._judge_labelled(key)

    def seen(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is there, or has changed."""
        before = self._between.get(owned.uid)
        self._between[owned.uid] = owned
        if before is None or before.owner != owned.owner:
            if before is not None:
                self._below.drop(before.owner, owned.uid)
            self._below.add(owned.owner, owned.uid)
            self._judge_below(owned.uid)

    def gone(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is no more."""
        before = self._between.pop(owned.uid, None)
        if before is not None:
            self._below.drop(before.owner, owned.uid)
            self._judge_below(owned.uid)

    def pod_seen(self, key: ModelKey, uid: str, owner: str) -> None:
        """A pod with the model's label is there, or has changed."""
        labelled = self._labelled.setdefault(key, {})
        before = labelled.get(uid)
        if before != owner:
            if before is not None:
                self._pods_below.drop(before, (key, uid))
            self._pods_below.add(owner, (key, uid))
            labelled[uid] = owner
            self._judge(key, uid)

    def pod_gone(self, key: ModelKey, uid: str) -> None:
        """Such a pod is no more, or has the label of another model."""
        labelled = self._labelled.get(key, {})
        owner = labelled.pop(uid, None)
        if owner is not None:
            self._pods_below.drop(owner, (key, uid))
            self._judge(key, uid)
        if not labelled:
            self._labelled.pop(key, None)

    def _judge_labelled(self, key: ModelKey) -> None:
        for uid in self._labelled.get(key, ()):
            self._judge(key, uid)

    def _judge_below(self, owner: str) -> None:
        """The pods of a ReplicaSet, or of a Deployment's ReplicaSets."""
        for replica_set in (owner, *self._below.of(owner)):
            for key, uid in self._pods_below.of(replica_set):
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
