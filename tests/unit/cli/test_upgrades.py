"""`batchedmodel upgrades` says of each model what other images would do, from kubectl's answers."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from batchedmodel_cli.__main__ import main
from batchedmodel_operator.kinds import Kind
from support.operator_world import World, manifest
from support.rollout_world import CRASHING, ROLLING, serving, upgraded_images

SIDECAR, SERVER = "registry.example/sidecar:2", "registry.example/model-server:2"
HUB = {"handler": "hf", "source": {"huggingFace": {"repo": "us/small"}}}
OWN = {"protocol": "V2", "image": "registry.example/own:7"}
FOREIGN = {"model": OWN, "sidecar": {"image": "registry.example/own-sidecar:7"}}


async def _model(name: str, spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A BatchedModel, and the Deployment that an operator with the images before makes of it."""
    world = World({**spec, "className": None})
    await world.settle()
    deployment = {**world.child(Kind.DEPLOYMENT)}
    deployment["metadata"] = {**deployment["metadata"], "name": name}
    body = manifest(spec)
    body["metadata"]["name"] = name
    return body, deployment


@pytest.fixture
async def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command where kubectl knows seven models."""
    rolling = {"upgrade": "Rolling"}
    made = [
        await _model("fetched", {"model": HUB, "sidecar": rolling}),
        await _model("foreign", FOREIGN),
        await _model("half", {"model": OWN, "sidecar": rolling}),
        await _model("of-class", {"model": {"handler": "simulated"}, "className": "calm"}),
        await _model("pinned", {"model": {"handler": "simulated"}}),
    ]
    models, deployments = [one for one, _ in made], [one for _, one in made]
    models.append(manifest({"model": {"handler": "simulated"}}))
    models[-1]["metadata"]["name"] = "new"
    models.append(manifest({"model": {"handler": "simulated"}, "replicas": -1}))
    models[-1]["metadata"]["name"] = "odd"
    calm = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModelClass",
        "metadata": {"name": "calm"},
        "spec": {"sidecar": rolling},
    }
    answers = {"batchedmodel": models, "batchedmodelclass": [calm], "deployment": deployments}
    monkeypatch.setattr(subprocess, "run", _kubectl(answers))
    return _command


def _command(*words: str) -> int:
    return main(["upgrades", *words])


def _kubectl(
    answers: dict[str, list[dict[str, Any]]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """What runs in its place and knows these objects."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        text = json.dumps({"items": answers[command[2]]})
        return subprocess.CompletedProcess(command, 0, text, "")

    return run


def _answers(world: World) -> dict[str, list[dict[str, Any]]]:
    """What kubectl would print of this world."""
    kinds = (Kind.BATCHED_MODEL, Kind.DEPLOYMENT, Kind.CONTROLLER_REVISION)
    everything = world.cluster.objects.items()
    return {
        kind.value.lower(): [body for (one, _, _), body in everything if one == kind]
        for kind in kinds
    }


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"items": null}', '{"items": [7]}', '{"items": [{}]}', "[" * 100_000],
    ids=["empty", "cut", "a list", "no items", "null", "a number", "no metadata", "deep"],
)
def test_what_is_no_list_of_objects_is_said(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert _command("--sidecar-image", SIDECAR) == 2
    said = capsys.readouterr()
    assert said.err == "kubectl get batchedmodel: what it printed is no list of objects\n"
    assert said.out == ""


async def test_it_is_said_of_each_model_what_becomes_of_its_pods(
    told: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told("--sidecar-image", SIDECAR, "--model-server-image", SERVER, "--json") == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["effect"] for name, one in found.items()} == {
        "fetched": "Rolls",
        "foreign": "OwnImages",
        "half": "Rolls",
        "of-class": "Rolls",
        "pinned": "Pinned",
        "new": "NoPods",
        "odd": "Unreadable",
    }
    assert [one["to"] for one in found["half"]["images"]] == [SIDECAR]
    assert [one["to"] for one in found["fetched"]["images"]] == [SERVER, SIDECAR]


async def test_the_chart_decides_for_those_that_say_nothing(
    told: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told("--sidecar-image", SIDECAR, "--mode", "Rolling") == 0
    out = capsys.readouterr().out
    assert "team        pinned     1      Rolls" in out
    assert "registry.example/sidecar:1 -> registry.example/sidecar:2" in out
    assert "Rolls        4   their pods are replaced" in out


async def test_the_same_images_replace_nothing(
    told: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told("--sidecar-image", "registry.example/sidecar:1", "--mode", "Rolling") == 0
    assert "Rolls" not in capsys.readouterr().out


async def test_what_would_be_new_has_to_be_said(
    told: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told() == 2
    assert "--sidecar-image or --model-server-image is missing" in capsys.readouterr().err


async def test_a_model_whose_sidecar_waits_for_another_model_image_keeps_its_pods(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # It was said to roll.
    own = {"handler": "simulated", "image": "registry.example/own:7"}
    world = await serving({**ROLLING, "model": own})
    world.restart(upgraded_images(2))
    await world.settle()
    monkeypatch.setattr(subprocess, "run", _kubectl(_answers(world)))
    assert _command("--sidecar-image", SIDECAR, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["effect"] == world.verdict("UpToDate")[1] == "WaitingForModelImage"
    assert found["why"] == world.condition("UpToDate")["message"]


@pytest.mark.parametrize(
    ("server", "pinned", "effect"),
    [(2, False, "TakenBack"), (2, True, "Pinned"), (3, False, "Rolls")],
)
async def test_a_model_from_which_these_images_were_taken_back_keeps_its_pods(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    server: int,
    pinned: bool,
    effect: str,
) -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    await world.settle()
    world.start_pod("3", **CRASHING)
    world.deployment_status(replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1)
    await world.settle()
    answers = _answers(world)
    if pinned:
        answers["batchedmodel"][0]["spec"]["sidecar"] = {"upgrade": "Pinned"}
    monkeypatch.setattr(subprocess, "run", _kubectl(answers))
    image = f"registry.example/model-server:{server}"
    words = ("--sidecar-image", SIDECAR, "--model-server-image", image)
    assert _command(*words, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["effect"] == effect
    assert _command(*words) == 0
    out = capsys.readouterr().out
    if effect == "TakenBack":
        assert found["why"].startswith("CrashLooping: pod 3, container model: ends again and again")
        assert "these images failed there and were taken back" in out
        assert "team/minilm: CrashLooping: pod 3" in out
    else:
        assert found["why"] is None
        assert "CrashLooping" not in out
