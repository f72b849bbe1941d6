"""What an effect comes to: pods, ways and accelerators."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchedmodel_cli.diff.dry_run import LiveModel
from batchedmodel_cli.diff.effects import Difference, Effect, difference
from batchedmodel_cli.diff.report import sentence
from support.drawn_edits import read_spec

MODEL = {"handler": "simulated"}
OTHER = {**MODEL, "env": {"A": "b"}}
IN_PLACE = {"maxSurge": 0, "maxUnavailable": 1}
GPU = {"resource": "nvidia.com/gpu", "count": 2}


def edited(
    before: Mapping[str, Any], after: Mapping[str, Any], status: Mapping[str, Any] | None = None
) -> Difference:
    old, new = read_spec({"model": MODEL, **before}), read_spec({"model": MODEL, **after})
    assert old is not None
    assert new is not None
    live = LiveModel(namespace="team", name="minilm", uid="6a", spec=old, status=status or {})
    return difference(live, new)


def said(effect: Effect, found: Difference) -> str:
    assert effect in found.effects
    return sentence(effect, found.before, found.after)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"replicas": 3}, "3 pods are replaced, with up to 1 more meanwhile"),
        ({"replicas": 8}, "8 pods are replaced, with up to 2 more meanwhile"),
        (
            {"replicas": 3, "accelerator": GPU, "rollout": IN_PLACE},
            "3 pods are replaced in place, 1 at a time: 2 serve meanwhile; "
            "no spare nvidia.com/gpu is needed",
        ),
        (
            {"accelerator": GPU, "rollout": IN_PLACE},
            "1 pod is replaced in place, 1 at a time: none serves meanwhile; "
            "no spare nvidia.com/gpu is needed",
        ),
        (
            {"replicas": 3, "accelerator": GPU, "rollout": {"maxSurge": 1, "maxUnavailable": 0}},
            "3 pods are replaced, with up to 1 more meanwhile, which needs 2 spare nvidia.com/gpu",
        ),
        (
            {"accelerator": GPU},
            "1 pod is replaced, with up to 1 more meanwhile, which needs 2 spare nvidia.com/gpu; "
            "where none comes for 600 s, in place: none serves",
        ),
        (
            {"replicas": 3, "accelerator": GPU, "rollout": {"switchAfterSeconds": 60}},
            "3 pods are replaced, with up to 1 more meanwhile, which needs 2 spare nvidia.com/gpu; "
            "where none comes for 60 s, in place: 2 serve",
        ),
        (
            {"replicas": 10, "rollout": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "10 pods are replaced, with up to 3 more and 2 fewer meanwhile",
        ),
        ({"replicas": 0}, "new pods will have another template; none has to be replaced now"),
        (
            {"suspend": True, "replicas": 3},
            "new pods will have another template; none has to be replaced now",
        ),
    ],
)
def test_a_rollout_is_told_by_pods_way_and_accelerators(spec: Mapping[str, Any], what: str) -> None:
    assert said(Effect.ROLLS_PODS, edited(spec, {**spec, "model": OTHER})) == what


def test_the_pods_of_an_autoscaler_are_counted_by_the_status() -> None:
    scaled = {"autoscaling": {"maxReplicas": 9}}
    found = edited(scaled, {**scaled, "model": OTHER}, {"desiredReplicas": 5})
    assert said(Effect.ROLLS_PODS, found).startswith("5 pods are replaced")


def test_more_pods_need_more_accelerators() -> None:
    found = edited({"replicas": 2, "accelerator": GPU}, {"replicas": 5, "accelerator": GPU})
    assert said(Effect.SCALES_PODS, found) == (
        "2 pods before, 5 after: 6 more nvidia.com/gpu needed"
    )


def test_pods_that_go_lose_nothing() -> None:
    assert said(Effect.SCALES_PODS, edited({"replicas": 2}, {"suspend": True, "replicas": 2})) == (
        "2 pods before, 0 after; pods that go first answer what they have accepted"
    )


def test_batch_settings_are_told_by_the_pods_that_take_them() -> None:
    found = edited({"replicas": 2}, {"replicas": 2, "batching": {"maxBatchSize": 8}})
    assert said(Effect.EFFECTIVE_AT_ONCE, found) == (
        "in force in 2 pods within two seconds; none restarts for it"
    )
    resting = edited({"suspend": True}, {"suspend": True, "batching": {"maxBatchSize": 8}})
    assert "there is none now" in said(Effect.EFFECTIVE_AT_ONCE, resting)


def test_an_autoscaler_comes_scales_otherwise_and_goes() -> None:
    few, more = {"maxReplicas": 4}, {"minReplicas": 3, "maxReplicas": 8}
    status = {"desiredReplicas": 2}
    comes = edited({"replicas": 2}, {"autoscaling": few})
    assert said(Effect.CHANGES_AUTOSCALING, comes) == (
        "an HPA takes over the number of pods: 1 to 4 pods"
    )
    otherwise = edited({"autoscaling": few}, {"autoscaling": more}, status)
    assert said(Effect.CHANGES_AUTOSCALING, otherwise) == (
        "the HPA scales by other rules from its next look on, 3 to 8 pods: 2 become 3 at once"
    )
    goes = edited({"autoscaling": few}, {"replicas": 1}, status)
    assert "the number of pods is the manifest's" in said(Effect.CHANGES_AUTOSCALING, goes)
    assert said(Effect.SCALES_PODS, goes).startswith("2 pods before, 1 after")


@pytest.mark.parametrize(
    ("service", "what"),
    [
        ({"port": 8080}, "its present port no longer answers callers"),
        ({"type": "LoadBalancer"}, "its address within the cluster stays"),
        ({"annotations": {"a": "b"}}, "the Service gets other annotations"),
    ],
)
def test_a_service_says_who_still_reaches_it(service: Mapping[str, Any], what: str) -> None:
    assert what in said(Effect.CHANGES_SERVICE, edited({}, {"service": service}))


def test_a_disruption_budget_says_how_many_may_go() -> None:
    two = {"replicas": 2}
    other = edited(two, {**two, "disruption": {"maxUnavailable": "50%"}})
    assert "may evict 50% of the pods at a time" in said(Effect.CHANGES_DISRUPTION, other)
    gone = edited(two, {**two, "disruption": {"podDisruptionBudget": "Never"}})
    assert "may evict all pods" in said(Effect.CHANGES_DISRUPTION, gone)


def test_rules_for_rollouts_replace_no_pod() -> None:
    found = edited({}, {"rollout": {"minReadySeconds": 5}})
    assert found.effects == (Effect.CHANGES_ROLLOUT,)
    assert "no pod is replaced" in said(Effect.CHANGES_ROLLOUT, found)
