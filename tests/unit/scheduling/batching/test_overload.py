"""The look ahead under pressure, against a programme that tries everything."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_scheduling.batching.overload import Device, FirstBatch, first_batch
from batchedmodel_scheduling.queue.ready_queue import QueuedItem
from support.examples import examples
from support.scheduling import an_entry

CELLS = 61  # up to the latest due time


def device(table: list[float], start_spread: float = 0.0) -> Device:
    return Device(table=table, start=0.0, start_spread=start_spread, spread=0.0)


def affine(fixed: float, per_row: float, rows: int) -> list[float]:
    return [0.0] + [fixed + per_row * count for count in range(1, rows + 1)]


class Losses:
    """The exact programme; members of a batch may be late by `grace` for nothing."""

    def __init__(
        self, entries: list[QueuedItem], table: list[float], price: float, grace: float
    ) -> None:
        self._entries, self._table, self._price, self._grace = entries, table, price, grace
        self._least = cache(self._tried)

    def least(self) -> float:
        """Over all first batches: at least one item is served."""
        count = len(self._entries)
        return min(
            self.of(FirstBatch(dropped, size))
            for dropped in range(count)
            for size in range(1, min(len(self._table) - 1, count - dropped) + 1)
        )

    def of(self, first: FirstBatch) -> float:
        """What this first batch loses, with the best of continuations."""
        dropped, size = first
        given_up = sum(entry.weight for entry in self._entries[:dropped])
        return given_up + self._served(dropped, size, 0.0)

    def _served(self, first: int, size: int, now: float) -> float:
        end = now + self._table[size]
        members = self._entries[first : first + size]
        late = sum(entry.weight for entry in members if end > entry.due + self._grace)
        return late + self._least(first + size, end)

    def _tried(self, first: int, now: float) -> float:
        left = len(self._entries) - first
        if not left:
            return self._price * now
        sizes = range(1, min(len(self._table) - 1, left) + 1)
        served = min(self._served(first, size, now) for size in sizes)
        return min(served, self._entries[first].weight + self._least(first + 1, now))


@settings(max_examples=examples(100))
@given(
    dues=st.lists(st.floats(0.005, 0.12), min_size=1, max_size=6),
    worths=st.lists(st.sampled_from([0.25, 1.0, 4.0]), min_size=6, max_size=6),
    fixed=st.floats(0.001, 0.02),
    per_row=st.floats(0.0005, 0.01),
    rows=st.integers(1, 6),
    price=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_a_choice_loses_no_more_than_the_best_but_for_the_grid(
    dues: list[float], worths: list[float], fixed: float, per_row: float, rows: int, price: float
) -> None:
    """Each batch looked at moves by half a cell at most; times differ by no more than that."""
    entries = [an_entry(n, due, work=worths[n]) for n, due in enumerate(sorted(dues))]
    table = affine(fixed, per_row, rows)
    chosen = first_batch(entries, device(table), price)
    largest = min(rows, len(dues))
    all_served = (len(dues) // largest + 1) * table[largest]
    cell = max(min(max(dues), all_served), table[1]) / CELLS
    off = (len(dues) / 2 + 2) * cell
    best = Losses(entries, table, price, -off).least()
    # Giving up at once is taken for a little more than giving up later.
    allowed = price * off + 0.03 * sum(entry.weight for entry in entries)
    assert Losses(entries, table, price, off).of(chosen) <= best + allowed


def test_when_all_can_be_in_time_none_is_given_up() -> None:
    entries = [an_entry(n, 1.0) for n in range(8)]
    assert first_batch(entries, device(affine(0.01, 0.001, 4)), 0.0).dropped == 0


def test_one_item_is_always_served() -> None:
    assert first_batch([an_entry(1, 0.001)], device([0.0, 5.0]), 1e9) == FirstBatch(0, 1)


def test_heads_that_would_make_a_batch_small_are_given_up() -> None:
    """In time for its first, a batch holds 2 of 10; without its first two it holds the others."""
    entries = [an_entry(n, 0.012 if n < 2 else 0.019) for n in range(10)]
    chosen = first_batch(entries, device(affine(0.01, 0.001, 10)), 0.0)
    assert chosen == FirstBatch(2, 8)


def test_an_item_worth_much_is_not_given_up_for_several_worth_little() -> None:
    entries = [an_entry(n, 0.012 if n < 2 else 0.019, work=40 if n < 2 else 1) for n in range(10)]
    chosen = first_batch(entries, device(affine(0.01, 0.001, 10)), 0.0)
    assert chosen.dropped == 0
    assert chosen.size <= 2


def test_at_a_higher_price_of_time_a_batch_of_few_is_given_up_earlier() -> None:
    """Two batches could serve all; without the first two items one batch is enough."""
    entries = [an_entry(n, 0.0125 if n < 2 else 0.05) for n in range(10)]
    table = affine(0.010, 0.001, 10)
    assert first_batch(entries, device(table), 0.0) == FirstBatch(0, 2)
    assert first_batch(entries, device(table), 100.0) == FirstBatch(0, 2)
    assert first_batch(entries, device(table), 250.0) == FirstBatch(2, 8)


def test_an_uncertain_start_leaves_room() -> None:
    """Six would end in the very moment they are due; fewer are all but sure to be in time."""
    entries = [an_entry(n, 0.016) for n in range(6)]
    table = affine(0.010, 0.001, 6)
    assert first_batch(entries, device(table), 0.0).size >= 5
    assert first_batch(entries, device(table, 0.001), 0.0).size < 6
