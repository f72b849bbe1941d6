"""Whatever people do to the spec and to the children, the last spec comes out, and then silence."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_kube.names import REVISION_LABEL
from batchedmodel_operator import render
from batchedmodel_operator.kinds import CHILDREN, Kind
from batchedmodel_operator.observed.state import model_from
from batchedmodel_operator.rollout import Mode
from support.examples import examples
from support.operator_cluster import contains
from support.operator_world import IMAGES, KEY, SIMULATED, World

_SPECS: tuple[Mapping[str, Any], ...] = (
    SIMULATED,
    {**SIMULATED, "replicas": 3},
    {**SIMULATED, "batching": {"maxBatchSize": 8, "requestTimeoutSeconds": 90}},
    {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}},
    {
        **SIMULATED,
        "batching": {"maxBatchSize": 64},
        "autoscaling": {"maxReplicas": 4, "metric": "QueueLength"},
    },
    {**SIMULATED, "accelerator": {"count": 2}, "drain": {"timeoutSeconds": 40}},
    {"model": {"handler": "simulated", "resources": {"limits": {"cpu": "1000m"}}}},
    {"model": {"protocol": "V2", "image": "registry.example/triton:1", "port": 9001}},
)

_DRIFTS: tuple[tuple[Kind, Mapping[str, Any]], ...] = (
    (Kind.CONFIG_MAP, {"data": {"batching.json": "{}"}}),
    (Kind.CONFIG_MAP, {"data": {"another": "file"}}),
    (Kind.CONFIG_MAP, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}),
    (Kind.SERVICE, {"spec": {"ports": []}}),
    (Kind.DEPLOYMENT, {"spec": {"minReadySeconds": 5}}),
    (Kind.DEPLOYMENT, {"spec": {"template": {"spec": {"containers": []}}}}),
    (Kind.DEPLOYMENT, {"spec": {"replicas": 4}}),
    (Kind.DEPLOYMENT, {"metadata": {"annotations": {"deployment.kubernetes.io/revision": "7"}}}),
    (Kind.AUTOSCALER, {"spec": {"maxReplicas": 99}}),
)


def _drifted(kind: Kind, change: Mapping[str, Any]) -> Callable[[World], None]:
    return lambda world: world.edit(kind, change) if world.has(kind) else None


_EVENTS = st.one_of(
    st.sampled_from(_SPECS).map(lambda spec: lambda world: world.spec(spec)),
    st.sampled_from(_DRIFTS).map(lambda drift: _drifted(*drift)),
    st.sampled_from(CHILDREN).map(lambda kind: lambda world: world.remove(kind)),
    st.just(World.restart),
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.lists(st.tuples(_EVENTS, st.integers(0, 3)), max_size=8))
def test_any_edits_and_drifts_end_in_what_the_last_spec_says(
    events: list[tuple[Callable[[World], None], int]],
) -> None:
    async def scenario() -> None:
        world = World()
        for event, looks in events:
            event(world)
            for _ in range(looks):
                await world.look()
        await world.settle()
        _is_as_the_spec_says(world)
        before = world.cluster.writes
        await world.look()
        assert world.cluster.writes == before
        world.restart()
        await world.look()
        assert world.cluster.writes == before, "a restart is no reason to write"

    asyncio.run(scenario())


_OWN_IMAGES: tuple[Mapping[str, Any], ...] = tuple(
    {
        "model": {"handler": "simulated", "image": f"registry.example/own:{tag}", "env": env},
        "sidecar": {"upgrade": upgrade},
    }
    for tag in (1, 2)
    for env in ({}, {"LEVEL": "2"})
    for upgrade in ("Pinned", "Rolling")
)
_OPERATORS = (IMAGES, dataclasses.replace(IMAGES, sidecar="registry.example/sidecar:2"))


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.lists(st.sampled_from((*_OWN_IMAGES, *_OPERATORS)), max_size=8))
def test_no_edit_and_no_operator_brings_another_sidecar_to_a_model_server_that_was_not_replaced(
    events: list[Mapping[str, Any] | render.Images],
) -> None:
    async def scenario() -> None:
        world = World(_OWN_IMAGES[0])
        await world.settle()
        first = _images(world)
        sidecar_of = {first["model"]: first["batcher"]}
        images = IMAGES
        for event in events:
            if isinstance(event, render.Images):
                images = event
                world.restart(images)
            else:
                world.spec(event)
            before = _images(world)
            await world.settle()
            after = _images(world)
            if before["model"] == after["model"]:
                assert before["batcher"] == after["batcher"]
            elif after["model"] not in sidecar_of:
                assert after["batcher"] == images.sidecar, "it was built anew"
            sidecar_of[after["model"]] = after["batcher"]
            waits = world.verdict("UpToDate")[1] == "WaitingForModelImage"
            assert waits == (after["batcher"] != images.sidecar)

    asyncio.run(scenario())


def test_a_state_that_had_an_older_sidecar_does_not_bring_it_back_to_a_running_model_server() -> (
    None
):
    def edit(image: int, env: Mapping[str, str]) -> Mapping[str, Any]:
        model = {"handler": "simulated", "image": f"registry.example/own:{image}", "env": env}
        return {"model": model, "sidecar": {"upgrade": "Pinned"}}

    newer = replace(IMAGES, sidecar="registry.example/sidecar:2")

    async def scenario() -> None:
        world = World(edit(2, {}))
        await world.settle()
        world.spec(edit(1, {}))
        await world.settle()
        world.restart(newer)
        await world.settle()
        world.spec(edit(2, {"LEVEL": "2"}))
        await world.settle()
        assert _images(world)["batcher"] == newer.sidecar
        world.spec(edit(2, {}))
        await world.settle()
        assert _images(world)["batcher"] == newer.sidecar

    asyncio.run(scenario())


def _images(world: World) -> dict[str, str]:
    return render.images_of(world.child(Kind.DEPLOYMENT)["spec"]["template"])


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.lists(st.one_of(_EVENTS, st.integers(1, 5)), max_size=8))
def test_the_replicas_are_the_autoscalers_for_as_long_as_there_is_one(
    events: list[Callable[[World], None] | int],
) -> None:
    scaled = {**SIMULATED, "autoscaling": {"minReplicas": 1, "maxReplicas": 5}}

    async def scenario() -> None:
        world = World(scaled)
        await world.settle()
        replicas = 1
        for event in events:
            if isinstance(event, int):
                replicas = event
                world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": replicas}})
            else:
                event(world)
                if not world.has(Kind.DEPLOYMENT):
                    replicas = 1
                else:
                    replicas = world.child(Kind.DEPLOYMENT)["spec"]["replicas"]
                # Of the events only those count that leave an autoscaler.
                world.spec(scaled)
            await world.settle()
            assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == replicas

    asyncio.run(scenario())


def _is_as_the_spec_says(world: World) -> None:
    model = model_from(world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name])
    spec = model.spec
    assert spec is not None
    kept = world.cluster.objects[
        Kind.CONTROLLER_REVISION, KEY.namespace, render.revision_name(model, spec)
    ]
    template = kept["data"]["template"]
    assert template["metadata"]["labels"][REVISION_LABEL] == render.revision(model, spec, IMAGES)
    replicas = None if spec.autoscaling else spec.replicas or 1
    # Nothing runs in this world, so that no pod lacks an accelerator.
    wanted = [
        render.config_map(model, spec),
        render.service(model, spec),
        render.deployment(model, spec, template, mode=Mode.SURGE, replicas=replicas),
    ]
    for manifest in wanted:
        assert contains(world.child(Kind(manifest["kind"])), manifest)
    assert world.has(Kind.AUTOSCALER) == (spec.autoscaling is not None)
    if spec.autoscaling is not None:
        wanted_autoscaler = render.autoscaler(model, spec, spec.autoscaling)
        assert contains(world.child(Kind.AUTOSCALER), wanted_autoscaler)
