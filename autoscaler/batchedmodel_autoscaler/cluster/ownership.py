"""Whose a pod is: by owner references, and not by its label alone, which anybody there may set.

A pod is its ReplicaSet's, that is its Deployment's, and that is its BatchedModel's: by uid, each by
the reference of its controller, and all with the model's label. The four come by watches of their
own and so in any order; a pod is nobody's until the last of them has come.
"""

from collections.abc import Mapping, Set

from batchedmodel_autoscaler.cluster.objects import ModelKey, Owned


class Ownership:
    """The references that were seen, and the pods that they lead from to a model."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, str] = {}
        self._between: dict[str, Owned] = {}
        """Deployments and ReplicaSets, by uid."""
        self._labelled: dict[ModelKey, dict[str, str]] = {}
        """The owners of pods that carry a model's label, by uid of the pod."""
        self._pods: dict[ModelKey, Set[str]] = {}
        """The pods of models since whose last change somebody asked for them."""

    def pods_of(self, key: ModelKey) -> Set[str]:
        """The uids of a model's pods."""
        found = self._pods.get(key)
        if found is None:
            labelled = self._labelled.get(key, ())
            found = self._pods[key] = {uid for uid in labelled if self.is_of(key, uid)}
        return found

    def sizes(self) -> Mapping[ModelKey, int]:
        """How many pods each model has that has any."""
        found = {key: len(self.pods_of(key)) for key in self._labelled}
        return {key: count for key, count in found.items() if count}

    def is_of(self, key: ModelKey, uid: str) -> bool:
        """Whether a pod is a model's."""
        replica_set = self._between.get(self._labelled.get(key, {}).get(uid, ""))
        return (
            replica_set is not None
            and replica_set.model == key
            and self.deployment_of(key, replica_set.owner)
        )

    def deployment_of(self, key: ModelKey, uid: str) -> bool:
        """Whether a Deployment is a model's."""
        found = self._between.get(uid)
        return found is not None and (found.model, found.owner) == (key, self._models.get(key))

    def model_seen(self, key: ModelKey, uid: str) -> None:
        """A model is there, or has changed."""
        self._models[key] = uid
        self._pods.pop(key, None)

    def model_gone(self, key: ModelKey) -> None:
        """A model is no more."""
        self._models.pop(key, None)
        self._pods.pop(key, None)

    def seen(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is there, or has changed."""
        self.gone(owned)
        self._between[owned.uid] = owned
        self._pods.pop(owned.model, None)

    def gone(self, owned: Owned) -> None:
        """A Deployment or a ReplicaSet is no more."""
        before = self._between.pop(owned.uid, None)
        if before is not None:
            self._pods.pop(before.model, None)

    def pod_seen(self, key: ModelKey, uid: str, owner: str) -> None:
        """A pod with the model's label is there, or has changed."""
        labelled = self._labelled.setdefault(key, {})
        if labelled.get(uid) != owner:
            labelled[uid] = owner
            self._pods.pop(key, None)

    def pod_gone(self, key: ModelKey, uid: str) -> None:
        """Such a pod is no more, or has the label of another model."""
        labelled = self._labelled.get(key, {})
        labelled.pop(uid, None)
        if not labelled:
            self._labelled.pop(key, None)
        self._pods.pop(key, None)
