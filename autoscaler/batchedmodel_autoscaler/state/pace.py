"""Which sidecar is asked next, and how often where there are too many for all at the same pace.

Pure; called by `poller`, and by `cluster_state`, which has to know how old an answer may be.
Namespaces share the questions, and in each of them its models. The one with the fewest questions
under way comes first, and equals take turns. So pods that let every question run into its time-out
take the places that nobody else wants, however many of them there are.
"""

from collections import Counter, deque
from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

from batchedmodel_autoscaler.cluster.objects import ModelKey

K = TypeVar("K", bound=Hashable)
MOST_POLLS_PER_SECOND: Final = 600.0
"""Half a core."""


def seconds_between(pods: Mapping[ModelKey, int], key: ModelKey, shortest: float) -> float:
    """Time between two questions to one sidecar of a model; `pods`: how many each model has.

    Namespaces share the questions of a second, and in each of them its models.
    """
    if not pods.get(key) or sum(pods.values()) <= MOST_POLLS_PER_SECOND * shortest:
        return shortest
    namespaces: Counter[str] = Counter()
    for model, count in pods.items():
        namespaces[model.namespace] += count
    whole = MOST_POLLS_PER_SECOND * shortest
    whole = min(namespaces[key.namespace], fair_share(namespaces.values(), whole))
    models = [count for model, count in pods.items() if model.namespace == key.namespace]
    asked = min(pods[key], fair_share(models, whole))
    return shortest * pods[key] / asked


def fair_share(wishes: Collection[float], whole: float) -> float:
    """What each gets of the whole at most. Who wishes for less leaves the rest to the others."""
    left = whole
    for count, wish in enumerate(sorted(wishes)):
        share = left / (len(wishes) - count)
        if wish >= share:
            return share
        left -= wish
    return whole


class Places:
    """The pods that wait to be asked, and how many of whose are being asked."""

    def __init__(self) -> None:
        self._namespaces: _Turns[str] = _Turns()
        self._models: dict[str, _Turns[ModelKey]] = {}
        self._pods: dict[ModelKey, deque[str]] = {}

    def wait(self, model: ModelKey, uid: str) -> None:
        """A pod is due."""
        self._namespaces.wait(model.namespace)
        self._models.setdefault(model.namespace, _Turns()).wait(model)
        self._pods.setdefault(model, deque()).append(uid)

    def take(self) -> tuple[ModelKey, str] | None:
        """The next pod; it has a place until `ended`. None where nobody waits."""
        namespace = self._namespaces.first()
        if namespace is None:
            return None
        models = self._models[namespace]
        model = models.first()
        assert model is not None, "a namespace waits without a model: our bug"
        pods = self._pods[model]
        uid = pods.popleft()
        if not pods:
            del self._pods[model]
        self._count(model, 1)
        return model, uid

    def ended(self, model: ModelKey) -> None:
        """The question to one of the model's pods has ended."""
        self._count(model, -1)
        if not self._models[model.namespace]:
            del self._models[model.namespace]

    def _count(self, model: ModelKey, by: int) -> None:
        models = self._models[model.namespace]
        models.count(model, by, waits=model in self._pods)
        self._namespaces.count(model.namespace, by, waits=models.waits)


class _Turns(Generic[K]):
    """Keys by how many questions of theirs are under way; those with equally many take turns."""

    def __init__(self) -> None:
        self._under_way: Counter[K] = Counter()
        self._waiting: dict[int, dict[K, None]] = {}
        """Those that wait, in the order of their turns, by how many of theirs are under way."""

    def __bool__(self) -> bool:
        return bool(self._under_way or self._waiting)

    @property
    def waits(self) -> bool:
        """Whether any of them waits."""
        return bool(self._waiting)

    def wait(self, key: K) -> None:
        """The key waits; where it does already, it keeps its turn."""
        self._waiting.setdefault(self._under_way[key], {}).setdefault(key)

    def first(self) -> K | None:
        """Whose turn it is; None where none waits."""
        return next(iter(self._waiting[min(self._waiting)])) if self._waiting else None

    def count(self, key: K, by: int, *, waits: bool) -> None:
        """So many more of the key's questions are under way, and it still `waits` or not."""
        before = self._under_way[key]
        equals = self._waiting.get(before, {})
        equals.pop(key, None)
        if not equals:
            self._waiting.pop(before, None)
        self._under_way[key] = before + by
        if not before + by:
            del self._under_way[key]
        if waits:
            self.wait(key)
