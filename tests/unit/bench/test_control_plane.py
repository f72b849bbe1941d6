"""The control plane's benchmark reads the audit log, and counts waits, as it says."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.names import PLURAL
from busy_sidecars import Turns
from control_plane import FULL, QUICK, Found, Plan, figures_of
from control_plane_busy import BusyPlan, busy_figures, counted
from control_plane_world import AUTOSCALER, EDITOR, OPERATOR, edit_of, manifest_of, merged, names_of
from control_plane_writes import Log, Write, counts, edits_applied
from many_sidecars import Gaps

CHILDREN = {
    "configmaps": "a-batching",
    "services": "a",
    "deployments": "a",
    "horizontalpodautoscalers": "a",
    "controllerrevisions": "a-12ab",
}


def _write(at: float, user: str, resource: str, name: str = "a", **more: str) -> Write:
    return Write(
        at=at,
        user=user,
        verb="patch",
        resource=resource,
        subresource=more.get("subresource", ""),
        namespace=more.get("namespace", "team"),
        name=name,
        status=200,
    )


def _edit(at: float, name: str = "a") -> Write:
    return _write(at, EDITOR, PLURAL, name)


def _applied(*writes: Write) -> list[float]:
    return list(edits_applied(writes, editor=EDITOR, operator=OPERATOR, resource=PLURAL))


def _children(at: float, *without: str, namespace: str = "team") -> list[Write]:
    return [
        _write(at + number / 10, OPERATOR, resource, name, namespace=namespace)
        for number, (resource, name) in enumerate(CHILDREN.items())
        if resource not in without
    ]


def test_an_edit_lasts_until_the_last_child_is_written() -> None:
    assert _applied(_edit(5.0), *_children(5.5)) == pytest.approx([0.9])


def test_an_edit_that_one_child_has_not_followed_is_not_applied() -> None:
    assert _applied(_edit(5.0), *_children(5.5, "services")) == [math.inf]


def test_what_was_written_before_or_elsewhere_or_by_others_follows_no_edit() -> None:
    others = [_write(6.0, "somebody", resource, name) for resource, name in CHILDREN.items()]
    found = _applied(*_children(4.0), _edit(5.0), *_children(5.1, namespace="other"), *others)
    assert found == [math.inf]


def test_a_status_follows_no_edit() -> None:
    status = _write(6.0, OPERATOR, "deployments", subresource="status")
    assert _applied(_edit(5.0), *_children(5.5, "deployments"), status) == [math.inf]


def test_leases_are_no_writes() -> None:
    writes = [_write(1.0, OPERATOR, "leases"), _write(2.0, OPERATOR, PLURAL, subresource="status")]
    assert counts([*writes, _edit(3.0)], (OPERATOR,)) == {f"patch {PLURAL}/status": 1}


def test_a_log_is_read_on_and_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    entry = {
        "stageTimestamp": "2026-01-01T00:00:01.500000Z",
        "user": {"username": OPERATOR},
        "verb": "patch",
        "objectRef": {"resource": "services", "namespace": "team", "name": "a"},
        "responseStatus": {"code": 201},
    }
    line = json.dumps(entry) + "\n"
    path = tmp_path / "audit.log"
    path.write_text(line + line[:20])
    log = Log(path)
    [write] = log.news()
    assert (write.resource, write.name, write.status, write.at % 60) == ("services", "a", 201, 1.5)
    path.write_text(line + line)
    assert len(log.news()) == 1
    assert log.news() == []


def test_waits_between_questions_are_counted_from_the_last_look_on() -> None:
    gaps = Gaps(0.0)
    for at in (1.0, 3.0, 8.0):
        gaps.asked("a", at)
    gaps.asked("b", 8.0)
    assert gaps.longest(9.0) == (5.0, 2)
    gaps.asked("a", 10.0)
    assert gaps.longest(11.5) == (2.5, 2), "nobody has asked b since"


def test_an_edit_is_right_and_changes_what_every_child_is_made_of() -> None:
    manifest = manifest_of(names_of(1)[0])
    before = read_manifest(manifest).spec
    after = read_manifest(merged(manifest, edit_of(7))).spec
    assert before.batching != after.batching
    assert before.service != after.service
    assert before.model != after.model
    assert before.autoscaling != after.autoscaling
    assert after.model.handler == before.model.handler


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_figures_say_how_much_they_are_of(plan: Plan) -> None:
    names = [figure.name for figure in figures_of(Found(loads=[1.0]), plan)]
    assert sum(f"{plan.models:,}" in name for name in names) >= 4
    assert len(set(names)) == len(names)


def _read(user: str, verb: str, resource: str) -> Write:
    return replace(_write(1.0, user, resource), verb=verb)


def test_reads_are_counted_by_who_made_them_watches_and_leases_included() -> None:
    status = _write(
        1.0, "kube-controller-manager", "horizontalpodautoscalers", subresource="status"
    )
    entries = [
        *(_read(OPERATOR, verb, "pods") for verb in ("get", "list", "watch")),
        _read(OPERATOR, "get", "leases"),
        _write(1.0, OPERATOR, PLURAL),
        _read(AUTOSCALER, "watch", "pods"),
        status,
        replace(status, status=409),
    ]
    plan = BusyPlan(models=200, hpa_seconds=15, seconds=2.0)
    found = busy_figures(counted(entries, plan))
    assert [figure.value for figure in found] == [2.0, 0.5, 0.5]


def test_a_load_comes_and_goes() -> None:
    moments = iter((0.0, 14.0, 16.0, 31.0))
    answers = {b"/": b"busy"}, {b"/": b"calm"}
    turns = Turns(answers=answers, seconds=15.0, clock=lambda: next(moments))
    told = [turns.answer("", b"/") for _ in range(4)]
    assert told == [b"busy", b"busy", b"calm", b"busy"]
