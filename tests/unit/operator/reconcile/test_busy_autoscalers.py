"""An HPA writes numbers every 15 s, and only what a reconcile looks at brings one."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_kube.errors import Conflict, Unreachable
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.memory import LONGEST_DELAY_SECONDS
from support.examples import examples
from support.operator_world import SIMULATED, World

_SCALED: dict[str, Any] = {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}}
_ABLE = {"type": "AbleToScale", "status": "True", "reason": "ReadyForNewScale"}
_VALID = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}
_BLIND = {**_VALID, "status": "False", "reason": "FailedGetObjectMetric", "message": "no API"}
_CROWDED = {**_BLIND, "reason": "AmbiguousSelector", "message": "by multiple HPAs: [team/a team/b]"}
_MOST = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas"}


def _metadata(**change: Any) -> dict[str, Any]:
    return {"metadata": change}


def _said(*conditions: Mapping[str, Any], **numbers: Any) -> dict[str, Any]:
    return {"status": {"conditions": list(conditions), **numbers}}


_WELL = _said(_ABLE, _VALID)
_NOTHING_NEW: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "a number": (_WELL, _said(_ABLE, _VALID, currentMetrics=[{"object": {"current": "3"}}])),
    "wishes": (_WELL, _said(_ABLE, _VALID, desiredReplicas=4, lastScaleTime="noon")),
    "a time": (_WELL, _said(_ABLE, {**_VALID, "lastTransitionTime": "noon"})),
    "patience": (_WELL, _said({**_ABLE, "reason": "ScaleDownStabilized"}, _VALID)),
    "the least": (_WELL, _said(_ABLE, _VALID, {**_MOST, "reason": "TooFewReplicas"})),
    "a writer": (_WELL, _metadata(managedFields=[{"manager": "hpa"}])),
    "another order": (
        _said(_ABLE, _CROWDED),
        _said(_ABLE, {**_CROWDED, "message": "by multiple HPAs: [team/b team/a]"}),
    ),
}
_NEWS: dict[str, Mapping[str, Any]] = {
    "no metric": _said(_ABLE, _BLIND),
    "another reason": _said(_ABLE, _CROWDED),
    "unable": _said({**_ABLE, "status": "False"}, _VALID),
    "the maximum": _said(_ABLE, _VALID, _MOST),
    "no look": _said(),
    "an edit": {"spec": {"maxReplicas": 99}},
    "a label": _metadata(labels={"mine": "yes"}),
    "an annotation": _metadata(annotations={"mine": "yes"}),
    "no owner": _metadata(ownerReferences=[]),
    "an end": _metadata(deletionTimestamp="2026-01-01T00:00:00Z"),
    "another one": _metadata(uid="another"),
}
_CHANGES = (_WELL, *(change for _, change in _NOTHING_NEW.values()), *_NEWS.values())


async def _settled(change: Mapping[str, Any]) -> World:
    world = World(_SCALED)
    await world.settle()
    world.edit(Kind.AUTOSCALER, change)
    await world.look()
    return world


@pytest.mark.parametrize(("before", "after"), _NOTHING_NEW.values(), ids=_NOTHING_NEW)
async def test_what_an_hpa_writes_at_each_look_brings_no_reconcile(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    world = await _settled(before)
    world.edit(Kind.AUTOSCALER, after)
    assert world.looked_at()


@pytest.mark.parametrize("change", _NEWS.values(), ids=_NEWS)
async def test_what_a_reconcile_looks_at_brings_one(change: Mapping[str, Any]) -> None:
    world = await _settled(_WELL)
    world.edit(Kind.AUTOSCALER, change)
    assert not world.looked_at()


async def test_what_comes_during_a_reconcile_may_have_come_too_late_for_it() -> None:
    world = await _settled(_WELL)
    known: list[bool] = []
    world.cluster.before_pods = lambda: known.append(world.looked_at())
    await world.look()
    assert known == [False]
    assert world.looked_at()


async def test_an_hpa_that_was_just_put_right_is_looked_at_once_more() -> None:
    """Whoever undoes the repair at once would be taken for what the repair was made of."""
    world = await _settled(_WELL)
    world.edit(Kind.AUTOSCALER, _NEWS["an edit"])
    await world.look()
    assert not world.looked_at()
    world.edit(Kind.AUTOSCALER, _NEWS["an edit"])
    assert not world.looked_at()


async def test_a_reconcile_that_failed_is_repeated_at_any_event() -> None:
    world = await _settled(_WELL)
    world.remove(Kind.SERVICE)
    world.cluster.failures[Kind.SERVICE] = Unreachable("the API server is away")
    with pytest.raises(Unreachable):
        await world.look()
    assert not world.looked_at()


async def test_an_operator_that_has_just_begun_has_looked_at_nothing() -> None:
    world = await _settled(_WELL)
    world.restart()
    assert not world.looked_at()


class _Watched:
    """The HPA of a world, whose events come late, and one for several changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.due = False
        self._told: tuple[str, str] | None = ("", "")
        self.tell()

    def change(self, change: Mapping[str, Any] | None) -> None:
        """Somebody edits the HPA, if it is there, or removes it."""
        if not self.world.has(Kind.AUTOSCALER):
            return
        if change is None:
            self.world.remove(Kind.AUTOSCALER)
            self._told = ("", "")  # even if nobody was told that it was made
        else:
            self.world.edit(Kind.AUTOSCALER, change)

    def tell(self) -> None:
        """The event of what has changed since the last one."""
        there = self.world.has(Kind.AUTOSCALER)
        metadata = self.world.child(Kind.AUTOSCALER)["metadata"] if there else {}
        now = (metadata["uid"], metadata["resourceVersion"]) if there else None
        if now != self._told:
            self._told = now
            # The end of an HPA is news always.
            self.due = self.due or not there or not self.world.looked_at()

    async def look(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """A reconcile, if one is due; `meanwhile` happens once the HPA has been read."""
        if self.due:
            self.due = False
            self.world.cluster.before_pods = meanwhile
            try:
                await self.world.look()
            except Conflict:
                self.due = True
            self.world.cluster.before_pods = lambda: None

    async def rest(self) -> None:
        """All events are told, and the operator has come back as often as a repair may wait."""
        for _ in range(2):
            for _ in range(20):
                self.tell()
                if not self.due:
                    break
                await self.look()
            else:
                raise AssertionError("its own work brings ever more reconciles")
            again = self.world.come_back_after
            if again is not None and again <= LONGEST_DELAY_SECONDS:
                self.world.now += LONGEST_DELAY_SECONDS
                self.due = True


_STEPS = st.tuples(
    st.sampled_from((*_CHANGES, None)),
    st.sampled_from(("changes", "is told", "changes in the middle", "is told in the middle")),
    st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.lists(_STEPS, max_size=10))
def test_whatever_is_passed_over_another_look_would_have_found_nothing(
    steps: list[tuple[Mapping[str, Any] | None, str, bool]],
) -> None:
    async def scenario() -> None:
        world = World(_SCALED)
        await world.settle()
        watched = _Watched(world)
        for change, when, looks in steps:
            if "middle" in when:
                watched.due = True

                def meanwhile(change: Any = change, tells: bool = "told" in when) -> None:
                    watched.change(change)
                    if tells:
                        watched.tell()

                await watched.look(meanwhile)
            else:
                watched.change(change)
                if when == "is told":
                    watched.tell()
            if looks:
                await watched.look()
        await watched.rest()
        before = world.cluster.writes
        await world.look()
        assert world.cluster.writes == before

    asyncio.run(scenario())


async def test_an_hpa_that_only_counts_costs_no_read() -> None:
    world = await _settled(_WELL)
    watched = _Watched(world)
    reads = world.cluster.reads
    for number in range(240):
        metrics = [{"object": {"current": {"value": str(number)}}}]
        world.edit(Kind.AUTOSCALER, _said(_ABLE, _VALID, currentMetrics=metrics))
        watched.tell()
        await watched.look()
    assert world.cluster.reads == reads
