"""The order and the times of work, in numbers only."""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from batchedmodel_operator.reconcile.work_queue import (
    BURST,
    RECONCILES_PER_SECOND,
    SPACING_SECONDS,
    WorkQueue,
)


def _queue(jitter: float = 0.0, *, places: int = 1000) -> WorkQueue[str]:
    """A key's group is what stands before its slash."""
    return WorkQueue(lambda: jitter, group=lambda key: key.partition("/")[0], places=places)


def _numbers(jitter: Callable[[], float]) -> WorkQueue[int]:
    return WorkQueue(jitter, group=lambda key: "", places=10_000)


def test_many_events_are_one_reconcile() -> None:
    queue = _queue()
    for _ in range(5):
        queue.add("a", now=0.0)
    assert queue.take(0.0) == "a"
    assert queue.take(0.0) is None


def test_an_event_during_a_reconcile_makes_another_after_it() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    queue.take(0.0)
    queue.add("a", now=0.05)
    assert queue.take(0.1) is None, "a key is never reconciled twice at the same time"
    queue.succeeded("a", 0.1, come_back_after=600.0)
    assert queue.wake_at() == SPACING_SECONDS
    assert queue.take(SPACING_SECONDS) == "a"


def test_an_event_during_a_reconcile_does_not_put_off_what_the_reconcile_asks_for() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    queue.take(0.0)
    queue.add("a", now=0.05)
    queue.succeeded("a", 0.1, come_back_after=0.0)
    assert queue.take(0.2) == "a"
    queue.succeeded("a", 0.3, come_back_after=600.0)
    assert queue.take(2.0) is None, "the look came after the event"


def test_reconciles_of_a_key_keep_their_distance() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    queue.take(0.0)
    queue.succeeded("a", 0.01, come_back_after=600.0)
    queue.add("a", now=0.02)
    assert queue.take(0.02) is None
    assert queue.take(SPACING_SECONDS) == "a"


def test_keys_come_in_the_order_in_which_they_are_due() -> None:
    queue = _queue()
    queue.add("b", now=0.0)
    queue.add("a", now=0.1)
    assert [queue.take(1.0), queue.take(1.0), queue.take(1.0)] == ["b", "a", None]


def test_a_reconcile_that_went_well_comes_back_when_it_wants_to() -> None:
    queue = _queue(jitter=0.5)
    queue.add("a", now=0.0)
    queue.take(0.0)
    queue.succeeded("a", 1.0, come_back_after=600.0)
    assert queue.wake_at() == pytest.approx(1 + 540), "a tenth earlier, by the jitter"
    queue.add("a", now=10.0)
    assert queue.take(10.0) == "a", "an event is sooner"
    queue.succeeded("a", 10.1, come_back_after=None)
    assert len(queue) == 0
    assert queue.take(10_000.0) is None


def test_failures_wait_ever_longer_up_to_five_minutes() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    now, delays = 0.0, []
    for _ in range(40):
        assert queue.take(now) == "a"
        delays.append(queue.failed("a", now))
        now += delays[-1]
    assert delays[:4] == [0.5, 1, 2, 4]
    assert delays[-1] == 300


def test_a_success_forgives_all_failures() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    for now in (0.0, 0.5, 1.5):
        queue.take(now)
        queue.failed("a", now)
    queue.take(3.5)
    queue.succeeded("a", 3.5, come_back_after=1.0)
    queue.take(4.5)
    assert queue.failed("a", 4.5) == 0.5


def test_an_event_does_not_wait_for_the_delay_of_a_failure() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    for now in (0.0, 0.5, 1.5, 3.5):
        queue.take(now)
        queue.failed("a", now)
    queue.add("a", now=5.0)
    assert queue.take(5.0) == "a", "it may be what mends it"
    queue.add("a", now=5.1)
    queue.failed("a", 5.15)
    assert queue.take(6.0) == "a"


def test_a_failure_that_makes_events_itself_waits_ever_longer_up_to_ten_seconds() -> None:
    queue, reconciles = _queue(), []
    queue.add("a", 0.0)
    for now in range(300):
        if queue.take(now) is not None:
            reconciles.append(now)
            queue.add("a", now)  # of the status that was written
            queue.failed("a", now)
    gaps = [later - sooner for sooner, later in itertools.pairwise(reconciles)]
    assert gaps[:4] == [1, 1, 1, 1]
    assert gaps[-1] == 10


def test_an_edit_does_not_wait_for_many_failures() -> None:
    queue = _queue()
    for now in range(0, 200, 10):
        queue.add("a", now)
        assert queue.take(now) == "a"
        queue.failed("a", now)
    queue.add("a", 190.5, awaited=True)
    assert queue.take(190.5) == "a"


def test_the_longest_reconcile_is_told() -> None:
    queue = _queue()
    assert queue.longest_reconcile(5.0) == 0
    queue.add("a", now=0.0)
    queue.take(1.0)
    assert queue.longest_reconcile(5.0) == 4


def test_a_thousand_keys_at_once_are_reconciled_at_a_rate() -> None:
    queue = _numbers(lambda: 0.0)
    for key in range(1000):
        queue.add(key, now=0.0)
    times: dict[int, float] = {}
    now, turns = 0.0, 0
    while len(times) < 1000 and turns < 2500:
        turns += 1
        taken = queue.take(now)
        if taken is None:
            due = queue.wake_at()
            assert due is not None
            assert due > now, "it would be asked again and again"
            now = due
        else:
            times[taken] = now
            queue.succeeded(taken, now, come_back_after=600.0)
    assert sum(at == 0 for at in times.values()) == BURST
    assert now == pytest.approx((1000 - BURST) / RECONCILES_PER_SECOND, rel=0.02)
    assert len(times) == 1000


def test_a_key_that_somebody_waits_for_passes_the_others() -> None:
    queue = _queue()
    for key in "abc":
        queue.add(key, now=0.0)
    queue.add("c", now=0.0, awaited=True)
    queue.add("d", now=0.0, awaited=True)
    assert [queue.take(1.0) for _ in range(5)] == ["c", "d", "a", "b", None]


def test_a_key_that_was_awaited_is_reconciled_once_and_then_like_any_other() -> None:
    queue = _queue()
    queue.add("a", now=0.0, awaited=True)
    assert queue.take(0.0) == "a"
    queue.succeeded("a", 0.1, come_back_after=5.0)
    queue.add("b", now=1.0)
    queue.add("a", now=1.1)
    assert [queue.take(2.0) for _ in range(3)] == ["b", "a", None]


def test_even_a_key_that_is_awaited_keeps_its_distance() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    queue.take(0.0)
    queue.add("a", now=0.05, awaited=True)
    queue.succeeded("a", 0.1, come_back_after=600.0)
    assert (queue.take(0.1), queue.wake_at()) == (None, 0.2)
    assert queue.take(0.2) == "a"


def test_an_edit_does_not_wait_for_the_retry_of_what_was_before() -> None:
    queue = _queue()
    queue.add("a", now=0.0)
    queue.take(0.0)
    assert queue.failed("a", 0.1) == 0.5
    queue.add("a", now=0.3, awaited=True)
    assert [queue.take(0.3), queue.take(9.0)] == ["a", None]


def test_after_a_pause_a_burst_is_allowed_again_and_no_more() -> None:
    queue = _numbers(lambda: 0.0)
    for round_ in (0.0, 100.0):
        for key in range(BURST + 50):
            queue.add(key, now=round_)
        taken = 0
        while queue.take(round_) is not None:
            taken += 1
        assert taken == BURST
        for key in range(BURST):
            queue.succeeded(key, round_, come_back_after=None)
        for key in range(BURST, BURST + 50):
            assert queue.take(round_ + 50) == key
            queue.succeeded(key, round_ + 50, come_back_after=None)


def test_all_that_was_reconciled_at_once_comes_back_spread_over_minutes() -> None:
    spread = iter(number / 100 for number in range(100))
    queue = _numbers(lambda: next(spread))
    for key in range(100):
        queue.add(key, now=0.0)
    for key in range(100):
        assert queue.take(0.0) == key
        queue.succeeded(key, 0.0, come_back_after=600.0)
    minutes: Counter[int] = Counter()
    for second in range(601):
        while (taken := queue.take(float(second))) is not None:
            assert taken in range(100)
            minutes[second // 60] += 1
    assert sum(minutes.values()) == 100
    assert max(minutes.values()) < 60


def _storm(queue: WorkQueue[str], keys: list[str], seconds: int) -> list[tuple[float, str]]:
    """All keys are edited five times a second, and reconciles take no time."""
    reconciles = []
    for tenth in range(seconds * 10):
        now = tenth / 10
        if tenth % 2 == 0:
            for key in keys:
                queue.add(key, now, awaited=True)
        while (taken := queue.take(now)) is not None:
            reconciles.append((now, taken))
            queue.succeeded(taken, now, come_back_after=600.0)
    return reconciles


@pytest.mark.parametrize("again", [False, True])
def test_a_key_that_is_edited_every_four_seconds_never_waits(again: bool) -> None:
    """The tenth edit waited for ten seconds.

    `again`: something else happens to the key before its status tells that the edit was seen.
    """
    queue = _queue()
    for edit in range(100):
        now = 4.0 * edit
        queue.add("team/a", now, awaited=True)
        assert queue.take(now) == "team/a"
        if again:
            queue.add("team/a", now + 0.05, awaited=True)
        queue.succeeded("team/a", now + 0.1, come_back_after=600.0)
        assert queue.edits_wait("team/a", now + 0.1) <= 0
        if again:
            assert queue.take(now + 0.25) == "team/a"
            queue.succeeded("team/a", now + 0.3, come_back_after=600.0)


def test_a_key_that_is_edited_without_end_is_reconciled_every_two_seconds() -> None:
    queue = _queue()
    reconciles = [at for at, _ in _storm(queue, ["team/a"], 120)]
    assert reconciles[:3] == [0.0, 0.2, 0.4], "the first ones are immediate"
    gaps = [later - sooner for sooner, later in itertools.pairwise(reconciles)]
    assert 2 <= max(gaps) < 2.5
    assert len(reconciles) < 75
    assert queue.edits_wait("team/a", 120.0) == 2


def test_a_namespace_whose_models_are_edited_without_end_is_bounded_and_slows_no_other() -> None:
    queue, keys = _queue(), [f"storm/{number}" for number in range(100)]
    reconciles, waits = [], []
    for tenth in range(600):
        now = tenth / 10
        for key in keys:
            queue.add(key, now, awaited=True)
        if tenth % 40 == 0:
            queue.add("team/a", now, awaited=True)
            began = now
        while (taken := queue.take(now)) is not None:
            reconciles.append((now, taken))
            waits += [now - began] if taken == "team/a" else []
            queue.succeeded(taken, now, come_back_after=600.0)
    assert waits == [0.0] * 15
    assert (queue.edits_wait(keys[0], now), queue.edits_wait("team/a", now)) == (10, 0)
    settled = [key for at, key in reconciles if at >= 20 and key in keys]
    assert len(settled) / 40 == pytest.approx(10, rel=0.3), "ten a second, all together"
    for key in keys[::10]:
        times = [at for at, one in reconciles if one == key]
        assert max(b - a for a, b in itertools.pairwise(times)) <= 11


def test_an_edit_after_a_calm_time_is_immediate_again() -> None:
    queue = _queue()
    _storm(queue, ["team/a"], 60)
    queue.add("team/a", 100.0, awaited=True)
    assert queue.take(100.0) == "team/a"
    assert queue.edits_wait("team/a", 100.0) <= 0
    assert queue.edits_wait("team/never-seen", 100.0) <= 0


def test_events_about_its_children_do_not_hurry_what_is_edited_without_end() -> None:
    queue, reconciles = _queue(), []
    for tenth in range(600):
        now = tenth / 10
        queue.add("a", now, awaited=tenth % 2 == 0)
        if queue.take(now) is not None:
            reconciles.append(now)
            queue.succeeded("a", now, come_back_after=600.0)
            queue.add("a", now)
    assert len([at for at in reconciles if at > 30]) <= 16


def test_edits_without_end_leave_turns_to_all_else_that_is_due() -> None:
    queue = _queue()
    for number in range(400):
        queue.add(f"storm/{number}", 0.0, awaited=True)
    queue.add("team/drift", 0.0)
    first = [queue.take(0.0) for _ in range(4)]
    assert first[-1] == "team/drift"


def test_groups_take_turns() -> None:
    queue = _queue()
    for number in range(50):
        queue.add(f"crowd/{number}", 0.0, awaited=True)
    queue.add("team/a", 0.0, awaited=True)
    queue.add("team/b", 0.0, awaited=True)
    first = [queue.take(0.0) for _ in range(4)]
    assert first == ["crowd/0", "team/a", "crowd/1", "team/b"]


def test_a_group_with_fewer_reconciles_under_way_comes_first() -> None:
    queue = _queue(places=9)
    for number in range(6):
        queue.add(f"slow/{number}", 0.0)
        queue.add(f"slower/{number}", 0.0)
    begun = [queue.take(0.0) for _ in range(6)]
    assert begun == ["slow/0", "slower/0", "slow/1", "slower/1", "slow/2", "slower/2"]
    queue.add("rare/0", 0.0)
    queue.add("rare/1", 0.0)
    queue.succeeded("slow/0", 0.0, None)
    assert [queue.take(0.0) for _ in range(3)] == ["rare/0", "rare/1", "slow/3"]


def test_no_group_has_all_places() -> None:
    queue = _queue(places=4)
    for number in range(4):
        queue.add(f"crowd/{number}", 0.0)
    assert [queue.take(0.0) for _ in range(4)] == ["crowd/0", "crowd/1", "crowd/2", None]
    assert queue.wake_at() is None, "it would be asked again and again"
    queue.add("team/a", 1.0)
    assert queue.take(1.0) == "team/a"
    queue.succeeded("crowd/0", 2.0, come_back_after=None)
    assert queue.take(2.0) == "crowd/3"


@pytest.mark.parametrize(("groups", "most"), [(1, 12), (2, 14), (3, 15), (4, 15)])
def test_a_few_groups_leave_a_place_to_others(groups: int, most: int) -> None:
    queue = _queue(places=16)
    for number in range(100):
        queue.add(f"{number % groups}/{number}", 0.0)
    taken = [queue.take(0.0) for _ in range(16)]
    assert len([one for one in taken if one is not None]) == most
    queue.add("team/a", 0.0)
    assert queue.take(0.0) == "team/a"
