"""Fair turns: who is shown next, how far apart tenants get, and that nobody is forgotten."""

import random
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.tenants import FairQueue

Key = tuple[str, int]
AHEAD = 8.0

Pick = Callable[[Sequence[Key]], Key]
PICKS: list[Pick] = [min, max, random.Random(1).choice]


def backlog(queue: FairQueue[Key], tenant: str, items: int, weight: float = 1.0) -> None:
    for number in range(items):
        queue.add(tenant, (tenant, number), work=1.0, rank=float(number), weight=weight)


def served(queue: FairQueue[Key], items: int, pick: Pick = min) -> list[Key]:
    """A device that takes one shown item after the other, whichever its policy likes best."""
    shown, order = list[Key](), list[Key]()
    for _ in range(items):
        shown += queue.show(AHEAD)
        key = pick(shown)
        shown.remove(key)
        queue.left(key)
        order.append(key)
    return order


@pytest.mark.parametrize("pick", PICKS)
def test_backlogged_tenants_never_get_further_apart_than_what_is_shown(pick: Pick) -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "a", 400)
    backlog(queue, "b", 400)
    had: Counter[str] = Counter()
    for tenant, _ in served(queue, 600, pick):
        had[tenant] += 1
        assert abs(had["a"] - had["b"]) <= AHEAD + 2


def test_a_tenant_of_three_times_the_weight_is_served_three_times_as_much() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "heavy", 400, weight=3.0)
    backlog(queue, "light", 400)
    had = Counter(tenant for tenant, _ in served(queue, 400))
    assert had["heavy"] == pytest.approx(300, abs=AHEAD)


def test_what_a_tenant_is_charged_beside_its_items_it_has_had() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "a", 400)
    backlog(queue, "b", 400)
    queue.charge("a", 100.0)
    queue.charge("unknown", 100.0)
    had = Counter(tenant for tenant, _ in served(queue, 300))
    assert had["b"] - had["a"] == pytest.approx(100, abs=AHEAD)


def test_tenants_that_share_no_batch_each_show_a_whole_one() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(40):
        queue.add("a", ("a", number), work=1.0, rank=number, kind="a's")
        queue.add("b", ("b", number), work=1.0, rank=number, kind="b's")
    had = Counter(tenant for tenant, _ in queue.show(AHEAD))
    assert had == {"a": AHEAD, "b": AHEAD}


def turns(queue: FairQueue[Key], batches: int) -> list[Hashable]:
    """Serves what is shown of the kind whose turn it is, again and again; the kinds.

    Each tenant's is its name.
    """
    shown, kinds = set[Key](), list[Hashable]()
    for _ in range(batches):
        shown.update(queue.show(AHEAD))
        kinds.append(queue.turn())
        for key in [key for key in shown if key[0] == kinds[-1]]:
            shown.remove(key)
            queue.left(key)
        # Half of a batch more or less is no reason to go twice in a row.
        queue.charge("a", 0.3 * AHEAD if kinds[-1] == "a" else 0.0)
    return kinds


def test_where_batches_are_not_shared_who_was_served_longest_ago_is_first() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(40):
        for tenant in "abc":
            queue.add(tenant, (tenant, number), work=1.0, rank=number, kind=tenant)
    assert turns(queue, 9) == ["a", "b", "c"] * 3


def test_who_has_had_more_than_another_by_a_batch_is_not_first() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(40):
        for tenant in "ab":
            queue.add(tenant, (tenant, number), work=1.0, rank=number, kind=tenant)
    queue.charge("a", 3 * AHEAD)
    had = turns(queue, 6)
    assert had.count("b") >= 4
    assert had[:3] == ["b", "b", "b"]


def test_what_is_shown_of_a_debtor_keeps_nobody_elses_back() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(60):
        for tenant in "ab":
            queue.add(tenant, (tenant, number), work=1.0, rank=number, kind=tenant)
    shown = queue.show(AHEAD)
    assert {tenant for tenant, _ in shown} == {"a", "b"}
    queue.charge("a", 50.0)
    served = 0
    while queue.turn() == "b" and served < 45:
        for key in [key for key in shown if key[0] == "b"]:
            shown.remove(key)
            queue.left(key)
            served += 1
        shown += queue.show(AHEAD)
    assert served >= 45


@pytest.mark.parametrize("cost", [1.0, 4.0])
def test_no_stream_of_newcomers_keeps_back_who_was_served_before_them(cost: float) -> None:
    """Two come for each that is served, so there are always some who never had anything."""
    queue: FairQueue[Key] = FairQueue()
    for number in range(3):
        queue.add("old", ("old", number), work=cost, rank=number, kind="old")
    backlog(queue, "flood", 400)
    numbers, had = count(), list[str]()
    kinds: dict[str, Hashable] = {"old": "old", "flood": None}
    for _ in range(300):
        for number in (next(numbers), next(numbers)):
            queue.add(f"new {number}", ("new", number), work=1.0, rank=0.0, kind=number)
        queue.take_back()
        shown, turn = queue.show(AHEAD), queue.turn()
        key = min(key for key in shown if kinds.get(key[0], key[1]) == turn)
        queue.leave_together([key], padded=False)
        queue.left(key)
        had.append(key[0])
    assert had.count("old") == 3


def test_what_waits_of_its_own_accord_keeps_neither_others_nor_its_own_tenants_next_back() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "a", 100)
    backlog(queue, "b", 100)
    queue.charge("b", 3 * AHEAD)
    seen = queue.show(AHEAD)
    assert {tenant for tenant, _ in seen} == {"a"}
    while queue.pass_over() and len(seen) < 80:
        seen += queue.show(AHEAD)
    assert {tenant for tenant, _ in seen} == {"a", "b"}


def test_what_is_taken_back_is_shown_again_and_costs_nothing() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(4):
        for tenant in "ab":
            queue.add(tenant, (tenant, number), work=1.0, rank=number, kind=tenant)
    everything = set(queue.show(AHEAD))
    for _ in range(20):
        assert set(queue.take_back()) == everything
        assert queue.unseen == 8
        assert set(queue.show(AHEAD)) == everything


def test_a_tenant_moves_the_horizon_once_however_many_kinds_it_sends() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "a", 400)
    for number in range(400):
        queue.add("b", ("b", number), work=1.0, rank=number, kind=number)
    assert len(queue.show(AHEAD)) == 2 * AHEAD
    for number in range(400):
        queue.discard(("b", number))
    for _ in range(400):
        for key in queue.show(AHEAD):
            queue.left(key)
    queue.add("c", ("c", 0), work=1.0, rank=0.0, kind="c's")
    backlog(queue, "d", 40)
    assert len(queue.show(AHEAD, 1)) <= 2 * AHEAD + 1, "who has gone has no kind here"


def test_long_items_cost_their_tenant_what_they_cost_the_device() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(200):
        queue.add("long", ("long", number), work=4.0, rank=number)
        queue.add("short", ("short", number), work=1.0, rank=number)
    had = Counter(tenant for tenant, _ in served(queue, 200))
    assert had["short"] == pytest.approx(160, abs=AHEAD)


@pytest.mark.parametrize("pick", PICKS)
def test_a_newcomer_waits_for_no_more_than_is_shown_however_the_policy_orders(pick: Pick) -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "flood", 1000)
    shown = queue.show(AHEAD)
    assert len(shown) == AHEAD
    queue.add("new", ("new", 0), work=1.0, rank=0.0)
    for before in range(40):
        shown += queue.show(AHEAD)
        if before == 0:
            assert ("new", 0) in shown
        key = pick(shown)
        if key == ("new", 0):
            assert before <= AHEAD + 1
            return
        shown.remove(key)
        queue.left(key)
    pytest.fail("the newcomer starves")


def test_a_short_time_out_is_first_within_its_tenant_only() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "patient", 20)
    for number in range(20):
        queue.add("hurried", ("hurried", number), work=1.0, rank=-float(number))
    order = served(queue, 40, pick=lambda shown: shown[0])
    assert [number for tenant, number in order if tenant == "hurried"] == list(range(19, -1, -1))
    assert [tenant for tenant, _ in order[:20]].count("patient") == pytest.approx(10, abs=1)


def test_a_tenant_alone_is_shown_in_its_own_order_and_never_held_back() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "only", 50)
    assert served(queue, 50) == [("only", number) for number in range(50)]
    assert queue.unseen == 0


def test_idle_time_is_not_saved_up() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "busy", 500)
    backlog(queue, "idle", 1)
    for _ in range(25):
        for key in queue.show(AHEAD):
            queue.left(key)
    for number in range(1, 200):
        queue.add("idle", ("idle", number), work=1.0, rank=number)
    had = Counter(tenant for tenant, _ in served(queue, 100))
    assert had["idle"] == pytest.approx(50, abs=AHEAD)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 3), st.floats(0.01, 10.0)),
            st.tuples(st.sampled_from(["left", "discard"]), st.integers(0, 99), st.just(0.0)),
        ),
        max_size=120,
    )
)
def test_something_is_shown_whenever_anything_waits_and_all_of_it_in_the_end(
    steps: list[tuple[str, int, float]],
) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting, shown = set[int](), list[int]()
    for key, (step, number, work) in enumerate(steps):
        if step == "add":
            queue.add(number, key, work=work, rank=-work, weight=1.0 + number)
            waiting.add(key)
        elif waiting:
            gone = sorted(waiting)[number % len(waiting)]
            if step == "discard" or gone in shown:
                (queue.left if step == "left" else queue.discard)(gone)
                waiting.discard(gone)
                shown = [key for key in shown if key != gone]
        shown += queue.show(AHEAD)
        assert bool(shown) == bool(waiting)
        assert queue.unseen == len(waiting) - len(shown)
    while shown:
        queue.left(shown.pop())
        shown += queue.show(AHEAD)
    assert queue.unseen == 0


def test_twenty_thousand_tenants_are_served_in_turn() -> None:
    """Where a look costs more the more tenants there are, this takes many minutes."""
    queue: FairQueue[Key] = FairQueue()
    tenants = 20_000
    for number in range(tenants):
        backlog(queue, f"tenant {number}", 2)
    shown, order = deque[Key](), list[Key]()
    for _ in range(2 * tenants):
        shown += queue.show(AHEAD)
        order.append(shown.popleft())
        queue.left(order[-1])
    assert len({name for name, _ in order[:tenants]}) == tenants
    assert len({name for name, _ in order[tenants:]}) == tenants
    assert not queue.unseen


def test_a_weight_that_changes_while_items_are_shown_leaves_no_debt_behind() -> None:
    """They are given back as they were counted, so that somebody is always first."""
    queue: FairQueue[Key] = FairQueue()
    for tenant in "ab":
        for number, kind in enumerate("xyxy"):
            queue.add(tenant, (tenant, number), work=1.0, rank=number, weight=10.0, kind=kind)
    queue.show(AHEAD)
    for tenant in "ab":
        queue.add(tenant, (tenant, 4), work=1.0, rank=9.0, weight=1.0, kind="x")
    left = 0
    for _ in range(10):
        queue.take_back()
        batch = [key for key in queue.show(AHEAD) if "xyxyx"[key[1]] == queue.turn()]
        for key in batch:
            queue.left(key)
        left += len(batch)
        if left == 10:
            break
    assert left == 10
    assert queue.unseen == 0
