"""Conditions of a model with thousands of pods, of which other looks wait."""

from datetime import UTC, datetime

from batchedmodel_operator.conditions.view import Counts, View
from batchedmodel_operator.observed.memory import Memory
from batchedmodel_operator.observed.state import Observed, Pod, model_from
from batchedmodel_operator.planning.plan import plan
from support.operator_world import IMAGES, manifest
from support.steps import CountedText, steps


def view(count: int) -> View:
    """Of so many pods, every other one of an earlier revision."""
    model = model_from({**manifest(), "metadata": {**manifest()["metadata"], "uid": "1"}})
    pods = tuple(
        Pod(
            name=f"pod-{number}",
            uid=CountedText(f"uid-{number}"),
            address="",
            revision="new" if number % 2 else "old",
            deleting=False,
            ready=False,
            sidecar_started=False,
            settings_annotation="",
            body={},
        )
        for number in range(count)
    )
    observed = Observed(model=model, children={}, revisions=(), pods=pods, memory=Memory())
    planned = plan(observed, IMAGES, 0.0, datetime(2026, 1, 1, tzinfo=UTC))
    return View(
        observed=observed,
        plan=planned,
        failure=None,
        counts=Counts.of(None),
        newest=pods[1::2],
        diagnosis=None,
    )


def cost(count: int) -> int:
    """Steps of finding those of earlier revisions."""
    seen = view(count)
    taken = steps(lambda: seen.older)
    assert seen.older == seen.observed.pods[::2]
    return taken


def test_pods_of_earlier_revisions_are_found_in_time_that_grows_with_the_pods() -> None:
    few, many = cost(500), cost(2000)
    assert many < 6 * few, "sixteen times as long where each is compared with each"
