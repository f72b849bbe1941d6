"""How a rollout goes, and when it goes back, decided from what is seen and what was decided."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_kube.manifest.workload import Rollout, RolloutStrategy
from batchedmodel_operator.rollout import (
    SENTENCES,
    Cause,
    Fault,
    Mode,
    Record,
    Signs,
    Why,
    decide,
    seconds_left,
)
from support.examples import examples

FAULT = Fault(reason="CrashLooping", message="pod 1, container model: ends again and again")
STEADY = Signs(
    target="m-a",
    cause=Cause.EDIT,
    said="",
    is_authors=False,
    asked=Rollout(),
    accelerator=True,
    rolling=False,
    scarce=False,
    waited=None,
    fault=None,
    serving=True,
    overdue=False,
    complete=True,
    kept=frozenset(),
)
IN_FLIGHT = replace(
    STEADY, target="m-b", rolling=True, serving=False, complete=False, kept=frozenset({"m-a"})
)
GOOD = decide(STEADY, Record())
"""After a rollout of `m-a` that went well."""


@pytest.mark.parametrize(
    ("signs", "mode", "why"),
    [
        (replace(STEADY, accelerator=False), Mode.SURGE, Why.NO_ACCELERATOR),
        (STEADY, Mode.SURGE, Why.SPARE_EXPECTED),
        (replace(STEADY, scarce=True), Mode.IN_PLACE, Why.ACCELERATOR_SCARCE),
        (replace(STEADY, asked=Rollout(max_surge=2), scarce=True), Mode.SURGE, Why.AS_SPECIFIED),
        (replace(STEADY, asked=Rollout(max_surge="0%")), Mode.IN_PLACE, Why.AS_SPECIFIED),
        (
            replace(STEADY, asked=Rollout(max_unavailable=0), scarce=True),
            Mode.SURGE,
            Why.AS_SPECIFIED,
        ),
        (
            replace(STEADY, asked=Rollout(strategy=RolloutStrategy.SURGE), scarce=True),
            Mode.SURGE,
            Why.AS_SPECIFIED,
        ),
        (
            replace(STEADY, asked=Rollout(strategy=RolloutStrategy.IN_PLACE), accelerator=False),
            Mode.IN_PLACE,
            Why.AS_SPECIFIED,
        ),
    ],
    ids=lambda value: value.value if isinstance(value, Why) else "",
)
def test_which_pods_go_first(signs: Signs, mode: Mode, why: Why) -> None:
    found = decide(signs, Record())
    assert (found.mode, found.why) == (mode, why)
    assert found.sentence == SENTENCES[why]


def test_a_rollout_that_has_begun_goes_on_as_it_began() -> None:
    begun = decide(replace(IN_FLIGHT, rolling=False), GOOD)
    assert begun.mode is Mode.SURGE
    for change in ({"scarce": True}, {"target": "m-c"}):
        assert decide(replace(IN_FLIGHT, **change), begun).mode is Mode.SURGE
    assert decide(replace(STEADY, scarce=True), begun).mode is Mode.IN_PLACE


@pytest.mark.parametrize("seconds", [60, Rollout().switch_after_seconds])
def test_a_new_pod_that_finds_no_accelerator_lets_old_pods_go_first(seconds: int) -> None:
    asked = Rollout(switch_after_seconds=seconds)
    waiting = replace(IN_FLIGHT, asked=asked, scarce=True, waited=seconds - 1.0)
    before = decide(waiting, GOOD)
    assert (before.mode, before.latched) == (Mode.SURGE, False)
    assert seconds_left(waiting, before) == 1
    stuck = replace(waiting, waited=float(seconds))
    after = decide(stuck, before)
    assert (after.mode, after.why, after.latched) == (Mode.IN_PLACE, Why.SURGE_FOUND_NONE, True)
    # It found one since, and the rollout came to its end.
    assert decide(replace(STEADY, target="m-b"), after).mode is Mode.IN_PLACE
    fresh = decide(replace(STEADY, target="m-c", complete=False), after)
    assert (fresh.mode, fresh.latched) == (Mode.SURGE, False)


@pytest.mark.parametrize(
    "change",
    [
        {"asked": Rollout(strategy=RolloutStrategy.SURGE)},
        {"asked": Rollout(max_unavailable=0)},
        {"rolling": False},
        {"accelerator": False},
    ],
    ids=["Surge", "no pod may be missing", "no pods are replaced", "no accelerator"],
)
def test_what_keeps_a_surge_a_surge(change: dict[str, object]) -> None:
    stuck = replace(IN_FLIGHT, scarce=True, waited=1e6, **change)  # type: ignore[arg-type]
    found = decide(stuck, replace(GOOD, mode=Mode.SURGE))
    assert not found.latched
    assert seconds_left(stuck, replace(found, mode=Mode.SURGE)) > 1e9


def test_a_revision_whose_containers_fail_is_taken_back_and_not_tried_again() -> None:
    failed = decide(replace(IN_FLIGHT, fault=FAULT), GOOD)
    assert (failed.fault, failed.good) == (FAULT, "m-a")
    # Its pods are gone, and the good ones serve.
    assert decide(replace(IN_FLIGHT, rolling=False), failed).fault == FAULT
    assert decide(replace(STEADY, target="m-c", complete=False), failed).fault is None


@pytest.mark.parametrize(
    "change",
    [
        {"fault": None},
        {"serving": True},
        {"kept": frozenset({"m-0"})},
        {"asked": Rollout(auto_rollback=False)},
    ],
    ids=["pods only wait", "another pod serves", "the good one is not kept", "not wanted"],
)
def test_what_keeps_a_revision(change: dict[str, object]) -> None:
    signs = replace(IN_FLIGHT, **{"fault": FAULT, **change})  # type: ignore[arg-type]
    assert decide(signs, GOOD).fault is None


def test_a_revision_of_which_some_pods_serve_is_taken_back_when_its_time_is_up() -> None:
    signs = replace(IN_FLIGHT, fault=FAULT, serving=True, overdue=True)
    assert decide(signs, GOOD).fault == FAULT


def test_a_first_revision_that_fails_has_nothing_to_go_back_to() -> None:
    signs = replace(IN_FLIGHT, rolling=False, fault=FAULT)
    assert decide(signs, Record()).fault is None


def test_a_revision_that_served_once_is_not_taken_back_for_a_crash() -> None:
    crashed = replace(STEADY, target="m-b", fault=FAULT, serving=False, kept=frozenset({"m-a"}))
    good = decide(replace(STEADY, target="m-b"), GOOD)
    assert decide(replace(crashed, complete=False), good).fault is None


_STRATEGIES = st.sampled_from(RolloutStrategy)
_ASKED = st.builds(
    Rollout,
    strategy=_STRATEGIES,
    switch_after_seconds=st.sampled_from([0, 60, 600]),
    auto_rollback=st.booleans(),
    max_surge=st.sampled_from([None, None, 1, "25%"]),
    max_unavailable=st.sampled_from([None, None, 0, 1]),
)


@st.composite
def _signs(draw: st.DrawFn) -> Signs:
    waited = draw(st.none() | st.floats(0, 900))
    return Signs(
        target=draw(st.sampled_from(["m-a", "m-b", "m-c"])),
        cause=draw(st.sampled_from(Cause)),
        said=draw(st.sampled_from(["", "a"])),
        is_authors=draw(st.booleans()),
        asked=draw(_ASKED | st.just(Rollout())),
        accelerator=draw(st.booleans()),
        rolling=draw(st.booleans()),
        scarce=waited is not None or draw(st.booleans()),
        waited=waited,
        fault=draw(st.none() | st.just(FAULT)),
        serving=draw(st.booleans()),
        overdue=draw(st.booleans()),
        complete=draw(st.booleans()),
        kept=draw(st.frozensets(st.sampled_from(["m-a", "m-b", "m-c"]))),
    )


def _without_its_own(signs: Signs) -> Signs:
    return replace(signs, kept=signs.kept - {signs.target})


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(st.lists(_signs().map(_without_its_own), max_size=12))
def test_a_latch_falls_once_for_a_target_and_never_two_at_a_reconcile(looks: list[Signs]) -> None:
    record = Record()
    for signs in looks:
        before, record = record, decide(signs, record)
        same = before.target == record.target
        latched = record.latched and not (same and before.latched)
        failed = record.fault is not None and not (same and before.fault is not None)
        assert not (latched and failed)
        if latched:
            assert signs.waited is not None
            assert signs.waited >= signs.asked.switch_after_seconds
            assert signs.rolling
            assert signs.asked.strategy is RolloutStrategy.AUTO
        if failed:
            assert signs.fault is not None, "not for a pod that waits, pulls or fetches"
        if record.fault is not None:
            assert record.good in signs.kept
            assert signs.asked.auto_rollback
        if same and before.latched and signs.asked.strategy is RolloutStrategy.AUTO:
            held = record.latched or signs.asked.max_unavailable == 0
            assert held
        if record.latched:
            assert record.mode is Mode.IN_PLACE
        assert Record.of({"rollout": record.to_status()}) == record, "nothing is lost on the way"


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(_signs().map(_without_its_own), max_size=6), _signs().map(_without_its_own))
def test_another_target_begins_without_latches(looks: list[Signs], last: Signs) -> None:
    record = Record()
    for signs in looks:
        record = decide(signs, record)
    fresh = replace(last, target="m-d", fault=None, waited=None)
    found = decide(fresh, record)
    assert not found.latched
    assert found.fault is None


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(_signs().map(_without_its_own), max_size=6), _signs().map(_without_its_own))
def test_a_second_reconcile_at_the_same_decides_the_same(looks: list[Signs], last: Signs) -> None:
    record = Record()
    for signs in (*looks, last):
        record = decide(signs, record)
    # Both latches may be due; one falls at each look.
    settled = decide(last, record)
    assert decide(last, settled) == settled


@pytest.mark.parametrize(
    "kept",
    [{}, {"strategy": "Sideways"}, {"failedRevision": "m-a"}, {"strategyReason": "Weather"}],
    ids=str,
)
def test_what_others_wrote_into_a_status_decides_nothing(kept: dict[str, str]) -> None:
    found = Record.of({"rollout": kept})
    assert (found.why, found.latched, found.fault) == (None, False, None)
