"""An HPA writes numbers every 15 s, and only what a reconcile looks at brings one."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from batchedmodel_operator.cluster.objects import reader_of
from batchedmodel_operator.cluster.store import Record
from batchedmodel_operator.kinds import Kind
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
    "a writer": (_WELL, _metadata(managedFields=[{"manager": "hpa", "subresource": "status"}])),
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


def _record(world: World) -> Record:
    text = json.dumps(world.child(Kind.AUTOSCALER)).encode()
    return Record.of(Kind.AUTOSCALER, reader_of(Kind.AUTOSCALER)(text))


async def _settled(change: Mapping[str, Any]) -> World:
    world = World(_SCALED)
    await world.settle()
    world.edit(Kind.AUTOSCALER, change)
    return world


@pytest.mark.parametrize(("before", "after"), _NOTHING_NEW.values(), ids=_NOTHING_NEW)
async def test_what_an_hpa_writes_at_each_look_is_no_news(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    world = await _settled(before)
    known = _record(world)
    world.edit(Kind.AUTOSCALER, after)
    assert _record(world) == known


@pytest.mark.parametrize("change", _NEWS.values(), ids=_NEWS)
async def test_what_a_reconcile_looks_at_is_news(change: Mapping[str, Any]) -> None:
    world = await _settled(_WELL)
    known = _record(world)
    world.edit(Kind.AUTOSCALER, change)
    assert _record(world) != known
