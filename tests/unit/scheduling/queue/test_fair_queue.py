"""Fair turns: who is next, how far apart tenants get, and that each item has its turn."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.queue.fair_queue import FairQueue

Key = tuple[str, int]
AHEAD = 8.0

Pick = Callable[[Sequence[Key]], Key]
PICKS: list[Pick] = [min, max, random.Random(1).choice]


def push(
    queue: FairQueue[Key], key: Key, *, work: float = 1.0, rank: float = 0.0, kind: Hashable = "all"
) -> None:
    queue.push(Share(key[0]), key, work=work, rank=(rank,), kind=kind)


def backlog(queue: FairQueue[Key], tenant: str, items: int, weight: float = 1.0) -> None:
    for number in range(items):
        queue.push(
            Share(tenant, weight=weight), (tenant, number), work=1.0, rank=(number,), kind="all"
        )


def served(queue: FairQueue[Key], items: int, pick: Pick = min) -> list[Key]:
    """A device that takes one candidate after the other, the one that its policy likes best."""
    order = list[Key]()
    for _ in range(items):
        (kind,) = queue.kinds(1)
        key = pick(queue.candidates(kind, int(AHEAD)))
        queue.leave(key)
        order.append(key)
    return order


@pytest.mark.parametrize("pick", PICKS)
def test_backlogged_tenants_never_get_further_apart_than_the_candidates(pick: Pick) -> None:
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


def test_what_a_tenant_gets_back_it_has_not_had() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "a", 400)
    backlog(queue, "b", 400)
    for number in range(20):
        queue.leave(("a", number))
    queue.charge("a", -20.0)
    had = Counter(tenant for tenant, _ in served(queue, 100))
    assert had["a"] == pytest.approx(50, abs=AHEAD)


def test_candidates_are_of_one_kind_and_as_many_as_fill_a_batch() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(40):
        push(queue, ("a", number), rank=number, kind="a's")
        push(queue, ("b", number), work=7.0, rank=number, kind="b's")
    assert queue.candidates("a's", 8) == [("a", number) for number in range(8)]
    assert queue.candidates("b's", 12) == [("b", number) for number in range(12)]
    assert queue.candidates("unknown", 8) == []


def test_short_items_of_others_make_no_batch_of_long_ones_small() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(40):
        push(queue, ("long", number), work=30.0, rank=number, kind="long")
        push(queue, ("short", number), rank=number, kind="short")
    assert len(queue.candidates("long", 8)) == 8


def test_an_item_that_becomes_another_kind_keeps_its_tenants_turn() -> None:
    queue: FairQueue[Key] = FairQueue()
    push(queue, ("a", 0))
    push(queue, ("b", 0))
    queue.leave(("b", 0))
    push(queue, ("b", 1))
    queue.move(("a", 0), (9.0,), "late")
    assert queue.first() == ("a", 0)
    assert queue.kind_of(("a", 0)) == "late"
    assert queue.candidates("all", 8) == [("b", 1)]
    assert queue.candidates("late", 8) == [("a", 0)]


def kinds_served(queue: FairQueue[Key], batches: int) -> list[Hashable]:
    """Serves the candidates of the kind whose turn it is, again and again; the kinds."""
    kinds = list[Hashable]()
    for _ in range(batches):
        kinds += queue.kinds(1)
        for key in queue.candidates(kinds[-1], int(AHEAD)):
            queue.leave(key)
    return kinds


def test_where_batches_are_not_shared_the_tenant_served_longest_ago_is_first() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(40):
        for tenant in "abc":
            push(queue, (tenant, number), rank=number, kind=tenant)
    assert kinds_served(queue, 9) == ["a", "b", "c"] * 3


def test_a_tenant_that_has_had_three_batches_more_than_another_is_not_first() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(40):
        for tenant in "ab":
            push(queue, (tenant, number), rank=number, kind=tenant)
    queue.charge("a", 3 * AHEAD)
    assert kinds_served(queue, 4)[:3] == ["b"] * 3


@pytest.mark.parametrize(("cost", "turns"), [(1.0, 3), (4.0, 1)])
def test_no_stream_of_newcomers_keeps_back_a_tenant_served_before_them(
    cost: float, turns: int
) -> None:
    """Two come for each that is served, so there are always some who never had anything.

    A server of all at once would give each tenant about four units meanwhile.
    """
    queue: FairQueue[Key] = FairQueue()
    for number in range(3):
        push(queue, ("old", number), work=cost, rank=number, kind="old")
    backlog(queue, "flood", 400)
    numbers, had = count(), list[str]()
    for _ in range(300):
        for number in (next(numbers), next(numbers)):
            push(queue, (f"new {number}", number), kind=number)
        key = queue.first()
        assert key is not None
        queue.leave(key)
        had.append(key[0])
    assert had.count("old") == turns


def test_tenants_that_wait_of_their_own_accord_do_not_save_up_what_others_are_served() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(100):
        push(queue, ("waits", number), rank=number, kind="waits")
        push(queue, ("goes", number), rank=number, kind="goes")
    for _ in range(5):
        batch = queue.candidates("goes", int(AHEAD))
        queue.pass_over(batch)
        for key in batch:
            queue.leave(key)
    had = Counter(tenant for tenant, _ in served(queue, 40))
    assert had["waits"] == pytest.approx(20, abs=2 * AHEAD)


def test_many_kinds_of_one_tenant_give_it_no_more_turns() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "a", 400)
    for number in range(400):
        push(queue, ("b", number), rank=number, kind=number)
    had = Counter(tenant for tenant, _ in served(queue, 200))
    assert had["a"] == pytest.approx(100, abs=AHEAD)


def test_long_items_cost_their_tenant_what_they_cost_the_device() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(200):
        push(queue, ("long", number), work=4.0, rank=number)
        push(queue, ("short", number), rank=number)
    had = Counter(tenant for tenant, _ in served(queue, 200))
    assert had["short"] == pytest.approx(160, abs=AHEAD)


@pytest.mark.parametrize("pick", PICKS)
def test_a_newcomer_waits_for_no_more_than_the_candidates_however_the_policy_orders(
    pick: Pick,
) -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "flood", 1000)
    served(queue, 50, pick)
    push(queue, ("new", 0))
    before = [tenant for tenant, _ in served(queue, 40, pick)].index("new")
    assert before <= AHEAD + 1


def test_a_short_time_out_is_first_within_its_tenant_only() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "patient", 20)
    for number in range(20):
        push(queue, ("hurried", number), rank=-number)
    order = served(queue, 40, pick=lambda candidates: candidates[0])
    assert [number for tenant, number in order if tenant == "hurried"] == list(range(19, -1, -1))
    assert [tenant for tenant, _ in order[:20]].count("patient") == pytest.approx(10, abs=1)


def test_idle_time_is_not_saved_up() -> None:
    queue: FairQueue[Key] = FairQueue()
    backlog(queue, "busy", 500)
    backlog(queue, "idle", 1)
    served(queue, 200)
    for number in range(1, 200):
        push(queue, ("idle", number), rank=number)
    had = Counter(tenant for tenant, _ in served(queue, 100))
    assert had["idle"] == pytest.approx(50, abs=AHEAD)


def test_heads_are_the_first_items_of_tenants_in_the_order_of_their_turns() -> None:
    queue: FairQueue[Key] = FairQueue()
    for tenant in "abc":
        backlog(queue, tenant, 3)
    queue.leave(("a", 0))
    queue.cancel(("b", 0))
    assert queue.heads(9) == [("b", 1), ("c", 0), ("a", 1)]
    assert queue.heads(2) == [("b", 1), ("c", 0)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 3), st.floats(0.01, 10.0)),
            st.tuples(st.sampled_from(["leave", "cancel"]), st.integers(0, 99), st.just(0.0)),
            st.tuples(st.just("charge"), st.integers(0, 3), st.floats(-5.0, 10.0)),
        ),
        max_size=120,
    )
)
def test_an_item_is_next_whenever_any_waits_and_all_leave_in_the_end(
    steps: list[tuple[str, int, float]],
) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting = set[int]()
    for key, (step, number, amount) in enumerate(steps):
        if step == "push":
            share = Share(str(number), weight=1.0 + number)
            queue.push(share, key, work=amount, rank=(-amount,), kind=number % 2)
            waiting.add(key)
        elif step == "charge":
            queue.charge(str(number), amount)
        elif waiting:
            gone = sorted(waiting)[number % len(waiting)]
            (queue.leave if step == "leave" else queue.cancel)(gone)
            waiting.discard(gone)
        assert (queue.first() in waiting) == bool(waiting)
        assert len(queue) == len(waiting)
        offered = [key for kind in queue.kinds(9) for key in queue.candidates(kind, 1)]
        assert waiting.issuperset(offered)
        assert len(offered) == len(set(offered))
    while (first := queue.first()) is not None:
        queue.leave(first)
        waiting.discard(first)
    assert not waiting


def test_twenty_thousand_tenants_are_served_in_turn() -> None:
    """Where a look costs more the more tenants there are, this takes many minutes."""
    queue: FairQueue[Key] = FairQueue()
    tenants = 20_000
    for number in range(tenants):
        backlog(queue, f"tenant {number}", 2)
    order = list[str]()
    while (key := queue.first()) is not None:
        queue.leave(key)
        order.append(key[0])
    assert len(set(order[:tenants])) == tenants
    assert len(set(order[tenants:])) == tenants
    assert len(order) == 2 * tenants


def test_tenants_without_items_and_debts_are_forgotten() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number in range(10_000):
        push(queue, (f"tenant {number}", number))
        queue.leave((f"tenant {number}", number))
    assert len(queue._tenants) < 300


def test_an_item_with_another_rank_keeps_the_turn_of_its_tenant() -> None:
    queue: FairQueue[Key] = FairQueue()
    for number, kind in enumerate(("x", None, "x")):
        queue.push(Share("a"), ("a", number), work=1.0, rank=(float(number),), kind=kind)
    push(queue, ("b", 0))
    queue.move(("a", 2), (-1.0,))
    queue.move(("a", 9), (0.0,))
    assert queue.heads(1) == [("a", 2)]
    assert queue.candidates("x", 9) == [("a", 2), ("a", 0)]
    assert (queue.last("a"), queue.last("c")) == (("a", 1), None)
    queue.move(("a", 2), (5.0,))
    assert (queue.first(), queue.last("a")) == (("a", 0), ("a", 2))
    assert queue.heads(1) == [("a", 0)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 9), st.sampled_from("xy"))))
def test_after_any_moves_items_of_a_tenant_leave_by_rank(
    moves: list[tuple[str, float, str]],
) -> None:
    queue: FairQueue[Key] = FairQueue()
    ranks = {}
    for number, (tenant, rank, kind) in enumerate(moves):
        push(queue, (tenant, number), rank=rank, kind=kind)
        ranks[tenant, number] = rank
        moved = (tenant, number // 2)
        if moved in ranks:
            ranks[moved] = 9.0 - rank
            queue.move(moved, (ranks[moved],), "z" if kind == "x" else None)
    left: dict[str, list[float]] = {}
    while (first := queue.first()) is not None:
        queue.leave(first)
        left.setdefault(first[0], []).append(ranks.pop(first))
    assert all(ranks_of == sorted(ranks_of) for ranks_of in left.values())
    assert not ranks
