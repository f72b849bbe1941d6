"""Shared room: never more than there is, something for those who come, parts by weight."""

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.queue.shared_room import SharedRoom
from support.examples import examples


def filled(room: SharedRoom, share: Share, amount: int = 1) -> int:
    """How much a tenant gets that takes so much again and again until it is refused."""
    got = 0
    while room.refusal(share, amount) is None:
        room.take(share, amount)
        got += amount
    return got


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(1, 40),
        st.booleans(),
        st.sampled_from([0.01, 1.0, 3.0]),
        st.sampled_from([0.3, 1.0]),
    ),
    max_size=60,
)


@settings(max_examples=examples(300))
@given(st.integers(1, 200), STEPS)
def test_never_more_is_taken_than_there_is_and_books_agree(
    size: int, steps: list[tuple[str, int, bool, float, float]]
) -> None:
    room, held = SharedRoom(size), dict.fromkeys("abcd", 0)
    for tenant, amount, takes, weight, most in steps:
        share = Share(tenant, weight, most)
        may = room.most_now(share)
        assert not may or room.refusal(share, may) is None
        assert room.refusal(share, may + 1) is not None
        if not takes:
            back = min(amount, held[tenant])
            room.give_back(tenant, back)
            held[tenant] -= back
        elif room.refusal(share, amount) is None:
            room.take(share, amount)
            held[tenant] += amount
            assert held[tenant] <= max(1, most * size)
        assert room.in_use == sum(held.values()) <= size
        assert {name: room.of(name) for name in held} == held
        assert len(room) == sum(amount > 0 for amount in held.values())


@given(st.integers(8, 500))
def test_a_tenant_alone_gets_all_but_an_eighth_and_whoever_comes_gets_in(size: int) -> None:
    room = SharedRoom(size)
    assert filled(room, Share("flood")) == size - size // 8
    assert room.refusal(Share("new"), 1) is None


def test_many_who_come_with_little_all_get_in() -> None:
    room = SharedRoom(2048)
    filled(room, Share("flood"))
    for number in range(200):
        share = Share(f"new {number % 50}")
        assert room.refusal(share, 1) is None
        room.take(share, 1)


def test_who_take_what_they_can_get_parts_by_weight() -> None:
    room = SharedRoom(1000)
    shares = [Share("heavy", 3.0), Share("light", 1.0), Share("other", 1.0)]
    for _ in range(2000):
        for share in shares:
            filled(room, share)
            room.give_back(share.tenant, min(10, room.of(share.tenant)))
    for share in shares:
        filled(room, share)
    heavy, *light = [room.of(share.tenant) for share in shares]
    assert all(2.5 < heavy / one < 3.5 for one in light)


def test_who_has_nothing_may_fill_what_is_left_and_its_first_may_come_in_pieces() -> None:
    room, share = SharedRoom(100), Share("one")
    assert room.refusal(share, 100) is None
    for piece in range(10):
        assert room.refusal(share, 10, already=10 * piece) is None
        room.take(share, 10)
    assert room.refusal(share, 1, already=100) is Rejection.QUEUE_FULL


def test_a_bound_on_one_holds_though_nobody_else_is_there() -> None:
    room = SharedRoom(100)
    assert filled(room, Share("one", most=0.25)) == 25
    assert room.refusal(Share("one", most=0.25), 1) is Rejection.OVER_SHARE
    assert room.refusal(Share("other", most=0.25), 26) is Rejection.OVER_SHARE


def test_who_has_more_than_its_part_is_told_so_and_no_other() -> None:
    room = SharedRoom(80)
    filled(room, Share("flood"))
    filled(room, Share("new"))
    assert room.refusal(Share("flood"), 1) is Rejection.OVER_SHARE
    assert room.refusal(Share("new"), 1) is Rejection.QUEUE_FULL
