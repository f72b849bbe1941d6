"""The marks of the fields, by which `batchedmodel diff` speaks, are what the operator then does."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from batchedmodel_cli.diff.edits import edits
from batchedmodel_contract.schema.reading import RecordOf, declarations
from batchedmodel_kube.manifest.effect import Effect
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_operator.kinds import CHILDREN, Kind
from support.drawn_edits import Drawn, edited_fields, read_spec
from support.operator_world import SIMULATED, World

_SERVER_MADE: Final = ("uid", "resourceVersion", "generation", "managedFields")
_SCALED: Final = {"Deployment.replicas", "PodDisruptionBudget"}
"""A budget comes with the second pod."""
_ROLLED: Final = {"Deployment.template", "Deployment.rest", "ConfigMap"}
"""The way of a rollout depends on the device, and the file of adapters on their room."""
_MAY_CHANGE: Final[Mapping[Effect, set[str]]] = {
    Effect.ROLLS_PODS: _ROLLED,
    Effect.MAY_ROLL_PODS: _ROLLED,
    Effect.SCALES_PODS: _SCALED,
    # A target that the manifest leaves out follows the batch settings.
    Effect.EFFECTIVE_AT_ONCE: {"ConfigMap", "HorizontalPodAutoscaler"},
    Effect.CHANGES_AUTOSCALING: {"HorizontalPodAutoscaler", *_SCALED},
    Effect.CHANGES_SERVICE: {"Service"},
    Effect.CHANGES_DISRUPTION: {"PodDisruptionBudget"},
    Effect.CHANGES_ROLLOUT: {"Deployment.rest"},
    Effect.NO_EFFECT: set(),
}
_OWN: Final = {
    Effect.ROLLS_PODS: "Deployment.template",
    Effect.SCALES_PODS: "Deployment.replicas",
    Effect.EFFECTIVE_AT_ONCE: "ConfigMap",
    Effect.CHANGES_AUTOSCALING: "HorizontalPodAutoscaler",
    Effect.CHANGES_SERVICE: "Service",
    Effect.CHANGES_DISRUPTION: "PodDisruptionBudget",
    Effect.CHANGES_ROLLOUT: "Deployment.rest",
}
"""What the mark is about."""


def marks(before: Drawn, after: Drawn) -> dict[str, Effect]:
    old, new = read_spec(before), read_spec(after)
    assert old is not None
    assert new is not None
    return {edit.field: edit.effect for edit in edits(old, new)}


def _parts(world: World) -> Mapping[str, Any]:
    """The children as they are, the Deployment in three parts."""
    found: dict[str, Any] = {}
    for kind in CHILDREN:
        if not world.has(kind):
            continue
        body = copy.deepcopy(dict(world.child(kind)))
        for name in _SERVER_MADE:
            body["metadata"].pop(name, None)
        if kind is Kind.DEPLOYMENT:
            for name in ("template", "replicas"):
                found[f"Deployment.{name}"] = body["spec"].pop(name)
            found["Deployment.rest"] = body
        else:
            found[kind.value] = body
    return found


async def _changed(before: Drawn, after: Drawn) -> set[str]:
    world = World(before)
    await world.settle()
    old = _parts(world)
    world.spec(after)
    await world.settle()
    new = _parts(world)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def _unmarked(of: type[Any], mark: str, path: str) -> Iterator[str]:
    for _, declared in declarations(of):
        own, below = declared.edit or mark, f"{path}.{declared.name}"
        if isinstance(declared.rule, RecordOf):
            yield from _unmarked(declared.rule.of, own, below)
        elif not own:
            yield below


def test_every_field_has_a_mark_of_its_own_or_of_its_section() -> None:
    assert not list(_unmarked(Spec, "", "spec"))


@pytest.mark.slow
async def test_an_edit_of_any_field_changes_only_what_its_mark_says() -> None:
    seen: dict[str, set[str]] = {}
    claimed: dict[str, set[Effect]] = {}
    wrong: list[object] = []
    for path, before, after in edited_fields(2, seed=1):
        effects = {*marks(before, after).values()}
        changed = await _changed(before, after)
        if not changed <= set().union(*(_MAY_CHANGE[effect] for effect in effects)):
            wrong.append((path, effects, changed, before, after))
        section = path.partition(".")[0]
        seen.setdefault(section, set()).update(changed)
        claimed.setdefault(section, set()).update(effects)
    assert not wrong
    for section, effects in claimed.items():
        assert seen[section] >= {_OWN[one] for one in effects if one in _OWN}, section


async def test_a_batch_setting_beside_an_edit_of_the_pods_is_not_blamed_for_their_end() -> None:
    after = {"model": {"handler": "simulated", "env": {"A": "b"}}, "batching": {"maxBatchSize": 8}}
    assert marks(SIMULATED, after) == {
        "spec.model.env": Effect.ROLLS_PODS,
        "spec.batching.maxBatchSize": Effect.EFFECTIVE_AT_ONCE,
    }


async def test_of_a_handler_that_generates_only_cache_and_context_roll_pods() -> None:
    before = {**SIMULATED, "generation": {"maxSequences": 8}}
    cache = {"maxContextTokens": 4096, "kvCache": {"memory": "1Gi"}}
    after = {**SIMULATED, "generation": {"maxTokensPerStep": 64, **cache}}
    assert marks(before, after) == {
        "spec.generation.maxSequences": Effect.EFFECTIVE_AT_ONCE,
        "spec.generation.maxTokensPerStep": Effect.EFFECTIVE_AT_ONCE,
        "spec.generation.maxContextTokens": Effect.ROLLS_PODS,
        "spec.generation.kvCache": Effect.ROLLS_PODS,
    }


def test_a_section_that_comes_has_the_worst_of_the_fields_that_it_sets() -> None:
    targets = {**SIMULATED, "generation": {"targetTokenMilliseconds": 40}}
    cache = {**SIMULATED, "generation": {"kvCache": {"memory": "1Gi"}}}
    assert marks(SIMULATED, targets) == {"spec.generation": Effect.EFFECTIVE_AT_ONCE}
    assert marks(SIMULATED, cache) == {"spec.generation": Effect.ROLLS_PODS}
    assert marks(cache, SIMULATED) == {"spec.generation": Effect.ROLLS_PODS}


def test_a_list_of_records_is_shown_as_a_manifest_writes_it() -> None:
    old, new = (
        read_spec({**SIMULATED, "adapters": {"items": [{"name": "sql", "source": {"path": path}}]}})
        for path in ("/a", "/b")
    )
    assert old is not None
    assert new is not None
    (edit,) = edits(old, new)
    assert edit.field == "spec.adapters.items"
    assert edit.new == [{"name": "sql", "source": {"path": "/b"}}]
