"""Which Events a BatchedModel gets, at an API server in memory."""

from collections import Counter
from collections.abc import Sequence

from batchedmodel_kube.errors import Forbidden, Invalid
from batchedmodel_kube.names import MODEL_CONTAINER
from batchedmodel_operator.conditions.events import announcements
from batchedmodel_operator.conditions.findings import Reason
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import Model, model_from
from support.operator_world import KEY, SIMULATED, World, manifest


def _said(world: World) -> list[tuple[str, str]]:
    return [(kind, reason) for kind, reason, _ in world.events()]


def _events(model: Model, *conditions: Body) -> Sequence[Body]:
    """Those of a first look."""
    return announcements(model, conditions, {}, at="2026-01-01T00:00:00Z", now=0.0)[0]


async def test_a_new_model_is_announced_once() -> None:
    world = World()
    await world.settle()
    assert ("Normal", "Applied") in _said(world)
    before = _said(world)
    for _ in range(10):
        world.now += 600
        await world.look()
    world.restart()
    await world.look()
    assert _said(world) == before


async def test_that_a_new_model_does_not_serve_yet_is_no_news() -> None:
    world = World()
    await world.settle()
    assert world.verdict("Ready")[0] == "False"
    assert _said(world) == [("Normal", "Applied")]


async def test_a_pod_that_becomes_ready_is_announced_and_an_edit_that_changes_nothing_is_not() -> (
    None
):
    world = World()
    await world.settle()
    world.start_pod("1")
    world.all_ready()
    await world.settle()
    assert ("Normal", "Serving") in _said(world)
    before = _said(world)
    world.now += 10
    world.spec({**SIMULATED, "batching": {"maxBatchSize": 8}})
    await world.settle()
    assert _said(world) == before, "that settings are on their way is no news for days"


async def test_a_refusal_is_a_warning_in_the_api_servers_words() -> None:
    world = World()
    await world.settle()
    world.spec({"model": {"handler": "simulated", "env": {"A": "b"}}})
    world.cluster.failures[Kind.DEPLOYMENT] = Invalid("spec.template: no")
    for _ in range(3):
        world.now += 1
        try:
            await world.look()
        except Invalid:
            continue
    found = [one for one in world.events() if one[0] == "Warning"]
    assert ("Warning", "ReconcileFailed") in _said(world)
    assert sum("spec.template: no" in message for _, _, message in found) == 2
    assert len(found) == 2, "one of Reconciled, one of Ready, although it was tried three times"


async def test_an_event_names_its_object_and_who_tells() -> None:
    world = World()
    await world.settle()
    (event, *_) = [one for (kind, _, _), one in world.cluster.objects.items() if kind == Kind.EVENT]
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("BatchedModel", KEY.name, "uid-1")
    assert event["source"] == {"component": "batchedmodel-operator"}


async def test_events_that_are_refused_cost_nothing_else() -> None:
    world = World()
    world.cluster.failures[Kind.EVENT] = Forbidden("no")
    await world.settle()
    assert world.verdict("Reconciled") == ("True", "Applied")
    assert world.events() == []


def test_that_the_autoscaler_hears_nobody_is_a_warning() -> None:
    model = model_from({**manifest(), "metadata": {**manifest()["metadata"], "uid": "1"}})
    blind = {
        "type": "AutoscalingActive",
        "status": "False",
        "reason": Reason.METRICS_STALE,
        "message": "none of its 3 pods answers",
    }
    (event,) = _events(model, blind)
    assert (event["type"], event["reason"]) == ("Warning", "MetricsStale")


def test_a_summary_that_changes_is_news_even_where_another_condition_has_had_its_reason() -> None:
    metadata = {**manifest()["metadata"], "uid": "1"}
    lasts = {"type": "Progressing", "status": "False", "reason": Reason.ROLLED_BACK, "message": ""}
    served = {"type": "Ready", "status": "True", "reason": Reason.SERVING, "message": ""}
    model = model_from(
        {**manifest(), "metadata": metadata, "status": {"conditions": [lasts, served]}}
    )
    falls = {**served, "status": "False", "reason": Reason.ROLLED_BACK}
    (event,) = _events(model, lasts, falls)
    assert event["message"].startswith("Ready is False")
    # What is no summary has been told by the one that lasts.
    degraded = {**falls, "type": "Degraded", "status": "True"}
    assert not _events(model, lasts, served, degraded)


def _failing(world: World, number: int) -> None:
    """The model's container says another thing at every look."""
    reason = "CrashLoopBackOff" if number % 2 else "ImagePullBackOff"
    waiting = {"waiting": {"reason": reason, "message": "made to fail"}}
    (pod,) = [body for (kind, _, _), body in world.cluster.objects.items() if kind == Kind.POD]
    container = {"name": MODEL_CONTAINER, "ready": False, "state": waiting}
    pod["status"]["containerStatuses"] = [container]
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]


async def test_a_model_that_always_changes_makes_a_few_events_and_then_one_a_minute() -> None:
    world = World()
    await world.settle()
    world.start_pod("1")
    before = Counter(_said(world))
    for number in range(60):
        _failing(world, number)
        world.now += 1
        await world.look()
    said = Counter(_said(world)) - before
    assert said
    assert max(said.values()) == 3, said
    for number in range(600):
        _failing(world, number)
        world.now += 1
        await world.look()
    assert max((Counter(_said(world)) - before).values()) <= 3 + 11


async def test_what_comes_back_after_a_long_time_is_announced_again() -> None:
    world = World()
    await world.settle()
    world.start_pod("1")
    for number in range(60):
        _failing(world, number)
        world.now += 1
        await world.look()
    before = len(_said(world))
    world.now += 600
    _failing(world, 0)
    await world.look()
    assert len(_said(world)) > before
