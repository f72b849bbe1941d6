"""The queue of items: what a policy may choose from, and what becomes of each state."""

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.queue.item_queue import ItemQueue
from batchedmodel_scheduling.queue.items import Item, ItemId
from batchedmodel_scheduling.queue.ready_queue import QueuedItem, ReadyQueue
from support.strategies import an_item

NEXT = 8


def entry(item: Item) -> QueuedItem:
    return QueuedItem(item, order=item.arrived, work=1.0, weight=1.0)


def a_queue(*items: Item) -> ItemQueue:
    queue = ItemQueue()
    queue.room.size = 1000
    queue.order_by(entry, lambda length: 1.0, ReadyQueue(()), NEXT)
    for item in items:
        queue.push(entry(item))
    return queue


def tenants_items(rows: int, kinds: int) -> list[Item]:
    """Tenants with an item each; item n is of the key n % kinds."""
    return [
        an_item(number, key=str(number % kinds))._replace(share=Share(str(number)))
        for number in range(rows)
    ]


def offered(queue: ItemQueue, offer: int = 0) -> set[int]:
    ready = queue.candidates(offer)
    return set() if ready is None else {int(item.id) for item in ready}


def leave(queue: ItemQueue, ids: set[int]) -> None:
    ready = queue.candidates()
    assert ready is not None
    queue.leave([one for one in ready.entries() if one.id in ids])


def test_a_tenant_alone_is_offered_whole() -> None:
    items = [an_item(number)._replace(share=Share("a")) for number in range(100)]
    queue = a_queue(*items)
    assert len(offered(queue)) == 100
    assert queue.candidates(1) is None
    assert not queue.has_turns


def test_few_items_of_several_tenants_are_offered_whole() -> None:
    queue = a_queue(*tenants_items(rows=NEXT, kinds=3))
    assert offered(queue) == set(range(NEXT))


def test_of_many_items_those_of_the_kind_in_turn_are_offered_first() -> None:
    queue = a_queue(*tenants_items(rows=60, kinds=30))
    assert offered(queue) == {0, 30}
    assert offered(queue, 1) == {number for number in range(60) if 0 < number % 30 <= 16}
    assert offered(queue, 2) == {number for number in range(60) if number % 30 > 16}
    assert queue.candidates(3) is None


def test_many_tenants_of_the_kind_in_turn_hide_no_other_kind() -> None:
    items = [an_item(number)._replace(share=Share(str(number))) for number in range(60)]
    other = an_item(60, key="other")._replace(share=Share("60"))
    queue = a_queue(*items, other)
    assert 60 not in offered(queue)
    assert offered(queue, 1) == {60}


def test_when_a_kind_has_left_the_next_one_is_offered() -> None:
    queue = a_queue(*tenants_items(rows=60, kinds=30))
    left = set[int]()
    for _ in range(14):
        batch = offered(queue)
        assert len(batch) == 2
        left |= batch
        leave(queue, batch)
    assert len(left) == 28


def test_of_one_kind_a_flood_is_offered_no_more_than_leaves_next() -> None:
    flood = [an_item(number)._replace(share=Share("flood")) for number in range(100)]
    queue = a_queue(*flood, an_item(100)._replace(share=Share("other")))
    assert 100 in offered(queue)
    assert len(offered(queue)) <= 2 * NEXT + 1


def test_turns_end_once_a_half_of_what_leaves_next_is_left() -> None:
    queue = a_queue(*tenants_items(rows=12, kinds=3))
    assert queue.has_turns
    for number in range(7):
        queue.cancel(ItemId(number))
    queue.wake(0.0)
    assert queue.has_turns
    queue.cancel(ItemId(7))
    queue.wake(0.0)
    assert not queue.has_turns
    assert offered(queue) == {8, 9, 10, 11}


def test_an_item_of_a_key_that_rests_is_not_offered_until_that_is_over() -> None:
    for rows in (4, 60):
        queue = a_queue(*tenants_items(rows=rows, kinds=2))
        queue.rest("0", "2", until=1.0)
        queue.wake(0.5)
        assert 2 not in {int(item.id) for item in queue}
        assert queue.room.in_use == rows, "it waits all the same"
        queue.wake(1.0)
        assert 2 in {int(item.id) for item in queue}


def test_many_resting_keys_of_a_tenant_end_no_rest_of_another() -> None:
    """Whether the flood's keys rest for longer or shorter, before or after."""
    for flood_until in (1.0, 9.0):
        queue = a_queue(an_item(0, key="k")._replace(share=Share("small")))
        queue.rest("k", "small", until=5.0)
        for number in range(300):
            queue.rest(str(number), "flood", until=flood_until)
        queue.wake(0.5)
        assert offered(queue) == set()
        assert len(queue.resting.until) == 256
        queue.wake(5.0)
        assert offered(queue) == {0}


def test_a_key_that_is_refused_to_many_tenants_rests_for_all() -> None:
    """A server that refuses everybody was asked by each tenant, and with many without an end."""
    tenants = [an_item(n, key="k")._replace(share=Share(str(n))) for n in range(400)]
    queue = a_queue(*tenants, an_item(500, key="other")._replace(share=Share("0")))
    for number in range(16):
        queue.rest("k", str(number), until=1.0)
    assert len(list(queue)) == 385
    queue.rest("k", "16", until=2.0)
    assert [int(item.id) for item in queue] == [500]
    queue.wake(2.0)
    assert len(list(queue)) == 401


def test_an_item_that_came_back_is_first_also_after_a_rest_of_its_key() -> None:
    for rests_before in (True, False):
        flood = [an_item(number)._replace(share=Share("flood")) for number in range(100)]
        other = [an_item(number)._replace(share=Share("other")) for number in range(100, 200)]
        queue = a_queue(*flood, *other)
        ready = queue.candidates()
        assert ready is not None
        back = next(one for one in ready.entries() if one.item.share.tenant == "flood")
        queue.leave([back])
        late = entry(back.item._replace(arrived=50.0))  # by the usual order it would be the last
        if rests_before:
            queue.rest(back.item.key, "flood", until=1.0)
        queue.come_back(late)
        queue.rest(back.item.key, "flood", until=1.0)
        assert back.id not in offered(queue)
        queue.wake(1.0)
        assert back.id in offered(queue)


def test_an_item_that_came_back_is_the_first_of_its_tenant() -> None:
    flood = [an_item(number)._replace(share=Share("flood")) for number in range(100)]
    other = [an_item(number)._replace(share=Share("other")) for number in range(100, 200)]
    queue = a_queue(*flood, *other)
    first = queue.candidates()
    assert first is not None
    back = [one for one in first.entries() if one.item.share.tenant == "flood"]
    queue.leave(back)
    for one in back:
        queue.come_back(one)
    mine = [number for number in offered(queue) if number < 100]
    assert mine == sorted([int(one.id) for one in back])[: len(mine)]
    assert queue.room.in_use == 200


def test_late_items_have_the_turns_of_their_tenant() -> None:
    """Beside a flood that always has some on time they would wait for ever."""
    flood = [an_item(number)._replace(share=Share("flood")) for number in range(100)]
    queue = a_queue(*flood, an_item(100)._replace(share=Share("small")))
    assert 100 in offered(queue)
    ready = queue.candidates()
    assert ready is not None
    queue.becomes_late(next(one for one in ready.entries() if one.id == 100))
    assert queue.late_in_turn(0.0) == []
    leave(queue, offered(queue))
    assert [int(one.id) for one in queue.late_in_turn(0.0)] == [100]
    assert offered(queue) == set()
    queue.leave([], queue.late_in_turn(0.0))
    assert queue.late_in_turn(0.0) == []
    assert len(offered(queue)) == NEXT


def test_items_of_a_tenant_that_goes_apart_have_a_key_of_its_own() -> None:
    for rows in (4, 60):
        queue = a_queue(*tenants_items(rows=rows, kinds=1))
        queue.part("3")
        keys = {int(item.id): item.key for item in queue}
        assert keys[3] != keys[0]
        assert keys[2] == keys[0]


def test_an_item_that_rests_while_its_tenant_goes_apart_has_a_key_of_its_own_then() -> None:
    for rows in (4, 60):
        queue = a_queue(*tenants_items(rows=rows, kinds=1))
        queue.rest("0", "3", until=1.0)
        queue.part("3")
        queue.wake(1.0)
        keys = {int(item.id): item.key for item in queue}
        assert keys[3] != keys[0]
        assert keys[2] == keys[0]


def test_a_late_item_waits_apart_and_may_make_room() -> None:
    for rows in (4, 60):
        queue = a_queue(*tenants_items(rows=rows, kinds=1))
        ready = queue.candidates()
        assert ready is not None
        first = ready.entries()[0]
        queue.becomes_late(first)
        assert len(queue.late) == 1
        assert first.id not in offered(queue)
        queue.evict(first.item.share.tenant)
        assert queue.room.in_use == rows - 1
        assert [item.id for item in queue.evicted] == [first.id]
        queue.cancel(ItemId(first.id))
        assert not queue.evicted, "its caller has left: nobody is to be told"


def test_every_item_gives_its_room_back_once() -> None:
    for rows in (4, 60):
        queue = a_queue(*tenants_items(rows=rows, kinds=4))
        queue.rest("1", "1", until=9.0)
        ready = queue.candidates()
        assert ready is not None
        queue.becomes_late(ready.entries()[0])
        leave(queue, offered(queue))
        for number in range(rows):
            queue.cancel(ItemId(number))
            queue.cancel(ItemId(number))
        assert queue.room.in_use == 0
        assert len(queue) == 0


def test_turns_last_from_more_items_than_leave_next_until_a_half_of_that_is_left() -> None:
    """Batches of long items hold fewer than a full batch: what leaves next is learnt from them."""
    queue = a_queue(*tenants_items(rows=4, kinds=1))
    queue.usual_next_items = 4
    assert not queue.has_turns
    queue.push(entry(an_item(10)._replace(share=Share("late"))))
    assert queue.has_turns
    for number in (0, 1):
        queue.cancel(an_item(number).id)
        queue.wake(0.0)
        assert queue.has_turns
    queue.cancel(an_item(2).id)
    queue.wake(0.0)
    assert not queue.has_turns
