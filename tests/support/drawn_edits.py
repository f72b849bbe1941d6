"""Edits of right manifests into right manifests: of every field by itself, and of many at once."""

import copy
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.schema.reading import RecordOf, declarations
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import ScalingMetric
from support.drawn_manifests import drawn_manifests, drawn_value
from support.operator_world import manifest

Drawn = dict[str, Any]
"""The `spec` of a manifest."""

_MOST_TRIES: Final = 2000
_HUB: Final = {"repo": "a/b", "tokenSecretRef": {"name": "token"}}
_FROM: Final = (
    *({"path": "models"}, {"pythonPackage": "a.b"}, {"huggingFace": _HUB}),
    {"volume": {"claimName": "models"}},
)
_SECTIONS: Final[tuple[Drawn, ...]] = (
    *({"model": {"handler": "a:B", "source": source}} for source in _FROM),
    {"model": {"protocol": "V1", "image": "own:1"}},
    {"model": {"protocol": "OpenAI", "image": "own:1"}, "generation": {}},
    {"generation": {"kvCache": {"memory": "1Gi"}}},
    {"generation": {"kvCache": {"fraction": 0.5}}},
    {"adapters": {"tokenSecretRef": {"name": "token"}}},
    {"accelerator": {}},
    {"batching": {"targetLatencyMilliseconds": 50}},
    {"suspend": True, "autoscaling": {"maxReplicas": 9}},
    {"autoscaling": {"minReplicas": 3, "maxReplicas": 3}},
    *({"autoscaling": {"maxReplicas": 9, "metric": metric.value}} for metric in ScalingMetric),
)
"""What is rarely drawn."""


def right_specs(count: int, *, seed: int) -> list[Drawn]:
    """The right ones of so many that are drawn, and some with every section in them."""
    drawn = [one["spec"] for one in drawn_manifests(count, seed=seed)]
    drawn += [{"model": {"handler": "simulated"}, **section} for section in _SECTIONS]
    return [spec for spec in drawn if read_spec(spec) is not None]


def edited_fields(each: int, *, seed: int) -> Iterator[tuple[str, Drawn, Drawn]]:
    """So many edits of each field that the contract declares: its path, the specs before and after.

    Sections that may be absent come and go as well.
    """
    random = Random(seed)
    bases = right_specs(300, seed=seed)
    for of, path in _paths(Spec, ()):
        if path == ("className",):
            continue  # whether it is right depends on its class
        for _ in range(each):
            yield ".".join(path), *_edit(random, bases, of, path)


def read_spec(spec: Drawn) -> Spec | None:
    """The record, or None of a spec that the contract refuses."""
    try:
        return read_manifest(manifest(spec)).spec
    except InvalidManifest:
        return None


def _edit(
    random: Random, bases: list[Drawn], of: type[Any], path: tuple[str, ...]
) -> tuple[Drawn, Drawn]:
    for _ in range(_MOST_TRIES):
        before = random.choice(bases)
        after = copy.deepcopy(before)
        inner: Any = after
        for name in path[:-1]:
            # Only a section with a default of its own is there without being written.
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            continue
        inner[path[-1]] = None if random.random() < 0.3 else drawn_value(random, of, path[-1])
        read = read_spec(before), read_spec(after)
        if read[1] is not None and read[0] != read[1]:
            return before, after
    raise AssertionError(f"no right edit of {path} was drawn")


def _paths(of: type[Any], above: tuple[str, ...]) -> Iterator[tuple[type[Any], tuple[str, ...]]]:
    """Every field, and the record that declares it."""
    for field, declared in declarations(of):
        path = (*above, declared.name)
        if isinstance(declared.rule, RecordOf):
            if not declared.required and field.default is None:
                yield of, path
            yield from _paths(declared.rule.of, path)
        else:
            yield of, path
