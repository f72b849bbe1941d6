"""What an effect comes to: pods, ways and accelerators."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchedmodel_cli.diff.live import objects_in, read_live
from batchedmodel_cli.diff.report import document
from batchedmodel_kube.manifest.effect import Effect
from support.drawn_edits import read_spec
from support.operator_world import manifest

MODEL = {"handler": "simulated"}
OTHER = {**MODEL, "env": {"A": "b"}}
IN_PLACE = {"maxSurge": 0, "maxUnavailable": 1}
GPU = {"resource": "nvidia.com/gpu", "count": 2}


def said(
    effect: Effect, before: Mapping[str, Any], after: Mapping[str, Any], *, desired: int = 0
) -> str:
    body = manifest({"model": MODEL, **before}) | {"status": {"desiredReplicas": desired}}
    new = read_spec({"model": MODEL, **after})
    assert new is not None
    live = read_live([body], body["metadata"]["name"], lambda _: None)
    sentence: str = document("minilm", live, new)["effects"][effect.value]
    return sentence


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"replicas": 3}, "3 pods are replaced, new ones first"),
        (
            {"replicas": 3, "accelerator": GPU, "rollout": IN_PLACE},
            "3 pods are replaced in place: old ones go first, and fewer serve meanwhile; "
            "no spare nvidia.com/gpu is needed",
        ),
        (
            {"rollout": {"strategy": "InPlace"}},
            "1 pod is replaced in place: old ones go first, and fewer serve meanwhile",
        ),
        (
            {"replicas": 3, "accelerator": GPU, "rollout": {"maxSurge": 1, "maxUnavailable": 0}},
            "3 pods are replaced, new ones first: each needs 2 spare nvidia.com/gpu",
        ),
        (
            {"accelerator": GPU, "rollout": {"switchAfterSeconds": 60}},
            "1 pod is replaced, new ones first: each needs 2 spare nvidia.com/gpu; "
            "where none comes for 60 s, in place",
        ),
        (
            {"suspend": True, "replicas": 3},
            "new pods will have another template; none has to be replaced now",
        ),
    ],
)
def test_a_rollout_is_told_by_pods_way_and_accelerators(spec: Mapping[str, Any], what: str) -> None:
    assert said(Effect.ROLLS_PODS, spec, {**spec, "model": OTHER}) == what


def test_the_pods_of_an_autoscaler_are_counted_by_the_status() -> None:
    scaled = {"autoscaling": {"maxReplicas": 9}}
    rolled = said(Effect.ROLLS_PODS, scaled, {**scaled, "model": OTHER}, desired=5)
    assert rolled.startswith("5 pods are replaced")


def test_more_pods_need_more_accelerators() -> None:
    two, five = ({"replicas": count, "accelerator": GPU} for count in (2, 5))
    needed = said(Effect.SCALES_PODS, two, five)
    assert needed == "2 pods before, 5 after: 6 more nvidia.com/gpu needed"


def test_a_model_that_rested_begins_with_the_fewest_pods_of_its_autoscaler() -> None:
    spec = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}
    assert said(Effect.SCALES_PODS, {**spec, "suspend": True}, spec) == "0 pods before, 2 after"


def test_pods_that_go_lose_nothing() -> None:
    assert said(Effect.SCALES_PODS, {"replicas": 2}, {"suspend": True, "replicas": 2}) == (
        "2 pods before, 0 after; pods that go first answer what they have accepted"
    )


def test_batch_settings_are_told_by_the_pods_that_take_them() -> None:
    after = {"replicas": 2, "batching": {"maxBatchSize": 8}}
    assert said(Effect.EFFECTIVE_AT_ONCE, {"replicas": 2}, after) == (
        "in force in 2 pods within two seconds; none restarts for it"
    )


def test_a_model_that_rests_has_no_pods_that_take_them() -> None:
    after = {"suspend": True, "batching": {"maxBatchSize": 8}}
    assert said(Effect.EFFECTIVE_AT_ONCE, {"suspend": True}, after) == (
        "in force in new pods; there is none now"
    )


def test_an_autoscaler_scales_otherwise_and_goes() -> None:
    few, more = {"maxReplicas": 4}, {"minReplicas": 3, "maxReplicas": 8}
    before = {"autoscaling": few}
    assert said(Effect.CHANGES_AUTOSCALING, before, {"autoscaling": more}, desired=2) == (
        "an HPA scales by the new rules, 3 to 8 pods: 2 become 3 at once"
    )
    goes = said(Effect.CHANGES_AUTOSCALING, before, {"replicas": 1}, desired=2)
    assert goes == "no HPA any more: the number of pods is the manifest's, 1"


@pytest.mark.parametrize("text", ["", "a text", "[1]", "{items: 7}", "{items: [7, {}]}"])
def test_what_holds_no_objects_is_read_as_none(text: str) -> None:
    assert objects_in(text) == [], text
