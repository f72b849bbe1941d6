"""Another operator rolls no pods: templates are kept, and what matters to pods is told apart."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from batchedmodel_contract.processes.logs import LogFormat
from batchedmodel_kube.errors import Invalid, NameTaken
from batchedmodel_kube.names import NAME_LABEL
from batchedmodel_operator import render
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import model_from
from support.drawn_manifests import drawn_manifests
from support.operator_world import IMAGES, KEY, SIMULATED, World

NEWER = replace(
    IMAGES, sidecar="registry.example/sidecar:2", model_server="registry.example/model-server:2"
)
ANOTHER: Mapping[str, Any] = {"model": {"handler": "simulated", "env": {"LEVEL": "2"}}}


def _template(world: World) -> Any:
    return world.child(Kind.DEPLOYMENT)["spec"]["template"]


def _image(world: World) -> Any:
    return _template(world)["spec"]["containers"][0]["image"]


async def test_an_operator_with_other_images_leaves_the_pods_as_they_are() -> None:
    world = World()
    await world.settle()
    before, template = world.cluster.writes, _template(world)
    world.restart(NEWER)
    await world.settle()
    assert world.cluster.writes == before + 1, "the status says that there are others"
    assert _template(world) == template
    status = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    assert status["effective"]["model"]["image"] == IMAGES.model_server, "it is what runs"


async def test_an_operator_that_is_told_to_log_otherwise_leaves_the_pods_as_they_are() -> None:
    world = World()
    await world.settle()
    before = world.cluster.writes
    world.restart(replace(IMAGES, log_format=LogFormat.JSON))
    await world.settle()
    assert world.cluster.writes == before
    world.spec(ANOTHER)
    await world.settle()
    told = _template(world)["spec"]["containers"][0]["env"]
    assert {"name": "BATCHEDMODEL_LOG_FORMAT", "value": "json"} in told


async def test_a_batching_edit_under_another_operator_leaves_the_pods_as_they_are() -> None:
    world = World({**SIMULATED, "batching": {"maxBatchSize": 8}})
    await world.settle()
    before = _template(world)
    world.restart(NEWER)
    world.spec({**SIMULATED, "batching": {"maxBatchSize": 64, "requestTimeoutSeconds": 90}})
    await world.settle()
    assert _template(world) == before


async def test_an_edit_that_matters_to_pods_is_rendered_by_the_present_operator() -> None:
    world = World()
    await world.settle()
    world.restart(NEWER)
    world.spec(ANOTHER)
    await world.settle()
    assert _image(world) == NEWER.model_server


async def test_an_edit_that_is_taken_back_brings_the_very_template_back() -> None:
    world = World()
    await world.settle()
    before = _template(world)
    world.restart(NEWER)
    world.spec(ANOTHER)
    await world.settle()
    world.spec(SIMULATED)
    await world.settle()
    assert _template(world) == before


async def test_whoever_deletes_what_was_kept_gets_the_present_operators_pods() -> None:
    world = World()
    await world.settle()
    world.restart(NEWER)
    for name in world.revisions():
        world.cluster.remove(Kind.CONTROLLER_REVISION, KEY.namespace, name)
    await world.settle()
    assert _image(world) == NEWER.model_server
    assert len(world.revisions()) == 1


async def test_a_few_templates_are_kept_and_the_one_in_use_always() -> None:
    world = World()
    await world.settle()
    (first,) = world.revisions()
    for number in range(6):
        world.spec({"model": {"handler": "simulated", "env": {"LEVEL": str(number)}}})
        await world.settle()
    assert len(world.revisions()) == 4
    assert first not in world.revisions()
    for number in (3, 2, 3):  # now the oldest that is kept is in use
        world.spec({"model": {"handler": "simulated", "env": {"LEVEL": str(number)}}})
        await world.settle()
    assert len(world.revisions()) == 4


async def test_a_template_that_is_refused_is_not_kept() -> None:
    world = World()
    world.cluster.failures[Kind.DEPLOYMENT] = Invalid("spec.template: no")
    with pytest.raises(Invalid):
        await world.look()
    assert world.revisions() == []
    world.cluster.failures.clear()
    await world.settle()
    assert len(world.revisions()) == 1


async def test_what_another_model_of_the_name_kept_is_not_used() -> None:
    world = World()
    await world.settle()
    (name,) = world.revisions()
    kept = world.cluster.objects[Kind.CONTROLLER_REVISION, KEY.namespace, name]
    kept["metadata"]["ownerReferences"][0]["uid"] = "an-earlier-one"
    assert kept["metadata"]["labels"][NAME_LABEL] == KEY.name
    world.restart(NEWER)
    with pytest.raises(NameTaken):
        await world.look()
    assert _image(world) == NEWER.model_server


@pytest.mark.slow
def test_whatever_changes_the_pods_changes_the_name_of_their_template() -> None:
    by_name: dict[str, str] = {}
    for manifest in drawn_manifests(1000, seed=8):
        manifest["metadata"] |= {"namespace": "team", "name": "minilm", "uid": "6a"}
        model = model_from(manifest)
        if model.spec is None:
            continue
        name = render.revision_name(model, model.spec)
        revision = render.revision(model, model.spec, IMAGES)
        assert by_name.setdefault(name, revision) == revision
    assert len(by_name) > 50


@pytest.mark.parametrize(
    "edit",
    [
        {"replicas": 3},
        {"batching": {"maxBatchSize": 3}},
        {"autoscaling": {"maxReplicas": 3}},
        {"service": {"port": 81}},
        {"suspend": True},
        {"rollout": {"minReadySeconds": 5}},
        {"drain": {}},
        {"startup": {}},
        {"sidecar": {"logLevel": "info"}},
        {"generation": {}},
        {"generation": {"maxSequences": 8, "maxTokensPerStep": 64, "targetTokenMilliseconds": 20}},
        {"generation": {"targetFirstTokenMilliseconds": 500}},
    ],
)
def test_what_does_not_matter_to_pods_keeps_the_name(edit: Mapping[str, Any]) -> None:
    names = set()
    for spec in (SIMULATED, {**SIMULATED, **edit}):
        world = World(spec)
        body = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
        body["metadata"]["uid"] = "6a"
        model = model_from(body)
        assert model.spec is not None
        names.add(render.revision_name(model, model.spec))
    assert len(names) == 1
