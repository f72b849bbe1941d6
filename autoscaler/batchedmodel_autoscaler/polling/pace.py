"""How often the sidecars of a model are asked where there are too many to ask all at the same pace.

Pure; called by `fleet`, which has to know how old an answer may be. `places` sees to it.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from batchedmodel_autoscaler.cluster.objects import ModelKey

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
