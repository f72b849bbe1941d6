"""What `batchedmodel diff` says of an edit is what the operator then does."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from batchedmodel_cli.diff.effects import EFFECT_OF_CHILD, Difference, Effect, difference
from batchedmodel_cli.diff.live import read_live
from batchedmodel_kube.manifest.spec import PullPolicy, target_utilization_percent
from batchedmodel_kube.manifest.workload import ScalingVia, UserIds
from batchedmodel_operator.kinds import CHILDREN, Kind
from batchedmodel_operator.render import Images
from support.drawn_edits import Drawn, edited_fields, read_spec, right_specs
from support.operator_world import IMAGES, KEY, SIMULATED, World

_SERVER_MADE = ("uid", "resourceVersion", "generation", "managedFields")


class Edited:
    """A model that an operator has brought up in an API server in memory, and then an edit."""

    def __init__(self, world: World, before: Drawn, after: Drawn) -> None:
        self._world = world
        self._before, self._after = before, after
        self.foretold: Difference
        self.seen: frozenset[Effect]

    @classmethod
    async def of(cls, before: Drawn, after: Drawn, chart: Images = IMAGES) -> "Edited":
        world = World(before)
        world.restart(chart)
        edited = cls(world, before, after)
        await edited._play()
        return edited

    @property
    def claimed(self) -> frozenset[Effect]:
        return frozenset(self.foretold.effects) - {Effect.NO_EFFECT}

    async def _play(self) -> None:
        world = self._world
        await world.settle()
        live = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
        spec = read_spec(self._after)
        assert spec is not None
        self.foretold = difference(read_live(json.dumps(live), KEY.name), spec)
        old, kept = self._children(), world.revisions()
        world.spec(self._after)
        await world.settle()
        self.seen = frozenset(self._differences(old, self._children(), kept))

    def _children(self) -> Mapping[Kind, Mapping[str, Any]]:
        world = self._world
        return {
            kind: {
                **body,
                "metadata": {
                    name: part
                    for name, part in body["metadata"].items()
                    if name not in _SERVER_MADE
                },
            }
            for kind in CHILDREN
            if world.has(kind)
            for body in [copy.deepcopy(world.child(kind))]
        }

    def _differences(
        self,
        old: Mapping[Kind, Mapping[str, Any]],
        new: Mapping[Kind, Mapping[str, Any]],
        kept: list[str],
    ) -> set[Effect]:
        found = {
            effect for kind, effect in EFFECT_OF_CHILD.items() if old.get(kind) != new.get(kind)
        }
        before, after = (dict(one[Kind.DEPLOYMENT]["spec"]) for one in (old, new))
        if before.pop("template") != after.pop("template"):
            found.add(Effect.ROLLS_PODS)
        elif kept != self._world.revisions():
            found.add(Effect.MAY_ROLL_PODS)
        if before.pop("replicas") != after.pop("replicas"):
            found.add(Effect.SCALES_PODS)
        if before != after:
            found.add(Effect.CHANGES_ROLLOUT)
        if Kind.AUTOSCALER in new and self._share(self._before) != self._share(self._after):
            found.add(Effect.CHANGES_AUTOSCALING)
        return found

    @staticmethod
    def _share(spec: Drawn) -> object:
        scaling = spec.get("autoscaling") or {}
        return target_utilization_percent(scaling.get("targetUtilizationPercent"))


@pytest.mark.slow
async def test_what_is_said_of_any_field_is_what_the_operator_does() -> None:
    met: set[Effect] = set()
    for path, before, after in edited_fields(2, seed=1):
        edited = await Edited.of(before, after)
        assert edited.claimed == edited.seen, (path, before, after)
        assert edited.foretold.edited, (path, before, after)
        for one in edited.foretold.edited:
            shorter, longer = sorted((f"spec.{path}", one.edit.path), key=len)
            assert longer.startswith(shorter), (path, before, after)
            assert one.effects, (path, before, after)
            met |= {*one.effects}
    assert met >= {*Effect} - {Effect.MAY_ROLL_PODS}, "the others are drawn"


@pytest.mark.slow
async def test_what_is_said_of_many_fields_together_is_what_the_operator_does() -> None:
    random = Random(2)
    specs = right_specs(400, seed=2)
    for _ in range(80):
        before, after = random.sample(specs, 2)
        edited = await Edited.of(before, after)
        assert edited.claimed == edited.seen, (before, after)
        assert all(one.effects for one in edited.foretold.edited)


async def test_every_child_has_an_effect() -> None:
    assert {*EFFECT_OF_CHILD, Kind.DEPLOYMENT} == set(CHILDREN)


async def test_a_batch_setting_is_in_force_at_once_and_rolls_no_pod() -> None:
    edited = await Edited.of(SIMULATED, {**SIMULATED, "batching": {"maxBatchSize": 8}})
    assert edited.foretold.effects == (Effect.EFFECTIVE_AT_ONCE,)


async def test_limit_and_targets_of_a_language_model_are_in_force_at_once_and_roll_no_pod() -> None:
    before = {"model": {"protocol": "OpenAI", "image": "own:1"}}
    limited = {**before, "generation": {"maxConcurrentRequests": 8}}
    at_once = (Effect.EFFECTIVE_AT_ONCE,)
    assert by_field((await Edited.of(before, limited)).foretold) == {"spec.generation": at_once}
    after = {**before, "generation": {"targetTokenMilliseconds": 40}}
    assert by_field((await Edited.of(limited, after)).foretold) == {
        "spec.generation.maxConcurrentRequests": at_once,
        "spec.generation.targetTokenMilliseconds": at_once,
    }


async def test_of_a_handler_that_generates_only_cache_and_context_roll_pods() -> None:
    before = {**SIMULATED, "generation": {"maxSequences": 8}}
    cache = {"maxContextTokens": 4096, "kvCache": {"memory": "1Gi"}}
    after = {**SIMULATED, "generation": {"maxTokensPerStep": 64, **cache}}
    assert by_field((await Edited.of(before, after)).foretold) == {
        "spec.generation.maxSequences": (Effect.EFFECTIVE_AT_ONCE,),
        "spec.generation.maxTokensPerStep": (Effect.EFFECTIVE_AT_ONCE,),
        "spec.generation.maxContextTokens": (Effect.ROLLS_PODS,),
        "spec.generation.kvCache": (Effect.ROLLS_PODS,),
    }


async def test_a_batch_setting_beside_an_edit_of_the_pods_is_not_blamed_for_their_end() -> None:
    after = {
        "model": {"handler": "simulated", "env": {"A": "b"}},
        "batching": {"maxBatchSize": 8},
    }
    edited = await Edited.of(SIMULATED, after)
    assert by_field(edited.foretold) == {
        "spec.model.env": (Effect.ROLLS_PODS,),
        "spec.batching.maxBatchSize": (Effect.EFFECTIVE_AT_ONCE,),
    }


async def test_a_field_that_counts_only_with_another_has_its_part_in_what_follows() -> None:
    scaling = {"maxReplicas": 4}
    after = {**scaling, "metric": "QueueLength", "targetQueueLength": 7}
    edited = await Edited.of(
        {**SIMULATED, "autoscaling": scaling}, {**SIMULATED, "autoscaling": after}
    )
    assert by_field(edited.foretold) == {
        "spec.autoscaling.metric": (Effect.CHANGES_AUTOSCALING,),
        "spec.autoscaling.targetQueueLength": (Effect.CHANGES_AUTOSCALING,),
    }


async def test_fields_that_are_right_only_together_are_one_edit() -> None:
    own = {"protocol": "V2", "image": "own:1"}
    edited = await Edited.of(SIMULATED, {"model": own, "replicas": 2})
    rolls = (Effect.ROLLS_PODS,)
    assert by_field(edited.foretold) == {
        "spec.replicas": (Effect.SCALES_PODS, Effect.CHANGES_DISRUPTION),
        "spec.model.handler": rolls,
        "spec.model.image": rolls,
        "spec.model.protocol": rolls,
    }


async def test_the_share_that_the_autoscaler_aims_at_is_no_part_of_any_child_but_counts() -> None:
    old = {**SIMULATED, "autoscaling": {"maxReplicas": 4}}
    new = {**SIMULATED, "autoscaling": {"maxReplicas": 4, "targetUtilizationPercent": 50}}
    assert (await Edited.of(old, new)).foretold.effects == (Effect.CHANGES_AUTOSCALING,)


async def test_a_default_that_is_written_down_has_no_effect() -> None:
    edited = await Edited.of(
        {**SIMULATED, "batching": {}}, {**SIMULATED, "batching": {"maxQueueSize": 2048}}
    )
    assert by_field(edited.foretold) == {"spec.batching.maxQueueSize": (Effect.NO_EFFECT,)}


async def test_what_follows_an_edited_field_is_told_beside_it() -> None:
    edited = await Edited.of(SIMULATED, {**SIMULATED, "batching": {"maxBatchSize": 256}})
    followed = [(one.path, one.old, one.new) for one in edited.foretold.followed]
    assert followed == [("spec.batching.maxQueueSize", 2048, 4096)]


async def test_pods_may_roll_where_their_template_is_made_anew_after_earlier_batch_edits() -> None:
    larger = {**SIMULATED, "batching": {"maxBatchSize": 8}}
    world = World(SIMULATED)
    await world.settle()
    world.spec(larger)
    await world.settle()
    live = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
    spec = read_spec({**larger, "pod": {"tolerations": []}})
    assert spec is not None
    found = difference(read_live(json.dumps(live), KEY.name), spec)
    assert found.effects == (Effect.MAY_ROLL_PODS,)
    # The pods were told the earlier size when they began, so here they do roll.
    before = copy.deepcopy(world.child(Kind.DEPLOYMENT)["spec"]["template"])
    world.spec({**larger, "pod": {"tolerations": []}})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["template"] != before


def by_field(found: Difference) -> dict[str, tuple[Effect, ...]]:
    return {one.edit.path: one.effects for one in found.edited}


async def test_a_model_that_rested_begins_with_the_fewest_pods_of_its_autoscaler() -> None:
    spec = {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 4}}
    edited = await Edited.of({**spec, "suspend": True}, spec)
    assert by_field(edited.foretold) == {"spec.suspend": (Effect.SCALES_PODS,)}
    assert (edited.foretold.before.pods, edited.foretold.after.pods) == (0, 2)
    assert edited.claimed == edited.seen


@pytest.mark.parametrize(
    ("section", "effects"),
    [
        ({"autoscaling": {"maxReplicas": 3, "via": "ExternalMetrics"}}, set()),
        (
            {"autoscaling": {"maxReplicas": 3, "via": "CustomMetrics"}},
            {Effect.CHANGES_AUTOSCALING},
        ),
        ({"security": {"ids": "FromCluster"}}, {Effect.MAY_ROLL_PODS}),
        ({"security": {"ids": "Fixed"}}, {Effect.ROLLS_PODS}),
        ({"model": {"handler": "simulated", "imagePullPolicy": "Always"}}, {Effect.MAY_ROLL_PODS}),
        ({"model": {"handler": "simulated", "imagePullPolicy": "Never"}}, {Effect.ROLLS_PODS}),
    ],
    ids=str,
)
async def test_what_the_chart_says_is_read_from_the_live_object(
    section: dict[str, Any], effects: set[Effect]
) -> None:
    chart = replace(
        IMAGES,
        via=ScalingVia.EXTERNAL_METRICS,
        ids=UserIds.FROM_CLUSTER,
        pull_policy=PullPolicy.ALWAYS,
    )
    scaled = {**SIMULATED, "autoscaling": {"maxReplicas": 3}}
    edited = await Edited.of(scaled, {**scaled, **section}, chart)
    assert edited.claimed == edited.seen == effects
