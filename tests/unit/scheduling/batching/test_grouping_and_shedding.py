"""Which length classes share batches, and who is given up when not all can be in time."""

from collections.abc import Iterator
from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_scheduling.batching.next_batch import LengthClass, merged
from batchedmodel_scheduling.batching.overload import Candidate, Selection, select
from batchedmodel_scheduling.queue.items import Priority
from batchedmodel_scheduling.queue.ready_queue import QueuedItem
from support.examples import examples
from support.scheduling import an_entry

few = settings(max_examples=examples(100))

# Grouping


def seconds_of(classes: list[LengthClass], runs: list[slice]) -> float:
    """All items of each run in batches as its longest class allows."""
    total = 0.0
    for run in runs:
        cap, table = classes[run.stop - 1].cap, classes[run.stop - 1].table
        full, rest = divmod(sum(one.items for one in classes[run]), cap)
        total += full * table[cap] + table[rest]
    return total


def partitions(count: int) -> list[list[slice]]:
    """All ways to cut that many classes into contiguous runs."""
    found = []
    for cuts in range(count):
        for inner in combinations(range(1, count), cuts):
            edges = [0, *inner, count]
            found.append([slice(a, b) for a, b in pairwise(edges)])
    return found


@st.composite
def length_classes(draw: st.DrawFn) -> list[LengthClass]:
    """Classes in order of length, with times and caps that fit."""
    fixed, per_token = draw(st.integers(0, 50)), draw(st.integers(1, 5))
    found, length, cap = [], 0, 16
    for items in draw(st.lists(st.integers(1, 40), min_size=1, max_size=6)):
        length += draw(st.integers(1, 20))
        cap = draw(st.integers(1, cap))
        table = [0.0] + [float(fixed + per_token * n * length) for n in range(1, cap + 1)]
        found.append(LengthClass(items, cap, table))
    return found


@few
@given(length_classes())
def test_merged_classes_take_the_least_time_of_all_contiguous_partitions(
    classes: list[LengthClass],
) -> None:
    runs = merged(classes)
    assert [n for run in runs for n in range(run.start, run.stop)] == list(range(len(classes)))
    best = min(seconds_of(classes, partition) for partition in partitions(len(classes)))
    assert seconds_of(classes, runs) == best


def test_a_launch_that_costs_much_merges_and_padding_that_costs_much_does_not() -> None:
    def classes(fixed: float) -> list[LengthClass]:
        tables = [[0.0] + [fixed + n * length for n in range(1, 9)] for length in (1, 100)]
        return [LengthClass(4, 8, table) for table in tables]

    assert merged(classes(1000.0)) == [slice(0, 2)]
    assert merged(classes(1.0)) == [slice(0, 1), slice(1, 2)]


# Shedding


def candidate(
    entries: list[QueuedItem], table: list[float], without: list[float] | None = None
) -> Candidate:
    due = min(entry.due for entry in entries)
    return Candidate(
        entries=entries,
        table=table,
        remaining=None if without is None else lambda _: without,
        factor=1.0,
        due=due,
        turn=due,
        weight=sum(entry.weight for entry in entries),
        by_due=[entry.due for entry in entries] == sorted(entry.due for entry in entries),
    )


def selected(candidates: list[Candidate], *, launch_price: float = 0.0) -> Selection:
    """Decide at time 0; seconds have no price unless one is given."""
    tables = {entry.id: one.table for one in candidates for entry in one.entries}
    return select(candidates, [0.0], lambda part: candidate(part, tables[part[0].id]), launch_price)


def fewest_late(jobs: list[tuple[int, int]]) -> int:
    """Jobs are (seconds, due); the least number that must be late, by trying all subsets."""
    for count in range(len(jobs), 0, -1):
        for chosen in combinations(jobs, count):
            end, in_time = 0, True
            for seconds, due in sorted(chosen, key=lambda job: job[1]):
                end += seconds
                in_time = in_time and end <= due
            if in_time:
                return len(jobs) - count
    return len(jobs)


@few
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=7),
    st.booleans(),
)
def test_of_lone_items_of_equal_worth_as_few_are_late_as_can_be(
    jobs: list[tuple[int, int]], equal: bool
) -> None:
    """Moore and Hodgson's rule is exact for them, whether their times are equal or not."""
    jobs = [(5 if equal else seconds, due) for seconds, due in jobs]
    candidates = [
        candidate([an_entry(n, float(due))], [0.0, float(seconds)])
        for n, (seconds, due) in enumerate(jobs)
    ]
    chosen = selected(candidates)
    assert len(chosen.given_up) + len(chosen.put_off) == fewest_late(jobs)


drawn_batches = st.lists(
    st.lists(
        st.tuples(st.integers(1, 120), st.sampled_from(Priority)),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)


@few
@given(
    drawn_batches,
    st.lists(st.integers(1, 20), min_size=4, max_size=4),
    st.sampled_from([0.0, 0.01, 0.1]),
)
def test_what_runs_is_in_time_and_everything_is_somewhere(
    drawn: list[list[tuple[int, Priority]]], steps: list[int], price: float
) -> None:
    table = [0.0]
    for step in steps:
        table.append(table[-1] + step)
    number, candidates = 0, []
    for members in drawn:
        entries = []
        for due, priority in members:
            number += 1
            entries.append(an_entry(number, float(due), priority=priority, step=40.0))
        # Batches hold those of the lowest priority first, then by due time.
        entries.sort(key=lambda entry: (-entry.item.priority, entry.due))
        candidates.append(candidate(entries, table))
    chosen = selected(candidates, launch_price=price)
    end = 0.0
    for batch in chosen.run:
        end += batch.seconds
        assert batch.seconds == table[len(batch.entries)]
        assert end <= batch.due == min(entry.due for entry in batch.entries)
    batches = [*chosen.run, *chosen.put_off]
    ids = [e.id for one in batches for e in one.entries] + [e.id for e in chosen.given_up]
    assert sorted(ids) == list(range(1, number + 1))


def test_when_all_can_be_in_time_all_run_in_order_of_turn() -> None:
    table = [0.0, 5.0]
    late, early = candidate([an_entry(1, 20.0)], table), candidate([an_entry(2, 10.0)], table)
    chosen = selected([late, early])
    assert chosen.run == [early, late]
    assert (chosen.given_up, chosen.put_off) == ([], [])


def test_what_is_left_of_a_batch_is_put_off_where_its_time_brings_more_elsewhere() -> None:
    table = [0.0, 6.0, 7.0, 8.0]
    left = candidate([an_entry(n, due) for n, due in enumerate((5.0, 5.0, 6.5), 1)], table)
    other = candidate([an_entry(n, 8.5) for n in (4, 5, 6)], table)
    chosen = selected([left, other], launch_price=0.3)
    assert [entry.id for entry in chosen.run[0].entries] == [4, 5, 6]
    assert [entry.id for one in chosen.put_off for entry in one.entries] == [3]


def test_a_batch_that_was_put_off_takes_no_time_of_those_behind() -> None:
    table = [0.0, 6.0, 7.0, 8.0]
    first = candidate([an_entry(n, 8.2) for n in (1, 2, 3)], table)
    left = candidate([an_entry(n, due) for n, due in enumerate((8.3, 8.3, 14.5), 4)], table)
    behind = candidate([an_entry(n, 16.5) for n in (7, 8, 9)], table)
    chosen = selected([first, left, behind], launch_price=0.3)
    assert [one.entries[0].id for one in chosen.run] == [1, 7]
    assert len(chosen.run[1].entries) == 3


def test_a_batch_in_time_is_put_off_where_its_time_brings_more_elsewhere() -> None:
    """A long one takes as long as many short ones that are due later."""
    long = candidate([an_entry(1, 50.0)], [0.0, 20.0])
    short = candidate([an_entry(n, 90.0) for n in range(2, 12)], [0.0, *[10.0] * 10])
    assert selected([long, short]).run == [long, short]
    chosen = selected([long, short], launch_price=0.5)
    assert (chosen.run, chosen.put_off) == ([short], [long])
    assert selected([long], launch_price=0.5).run == [long]


def test_what_is_left_of_a_batch_runs_where_there_is_nothing_else() -> None:
    left = [an_entry(n, due) for n, due in enumerate((5.0, 5.0, 6.5), 1)]
    chosen = selected([candidate(left, [0.0, 6.0, 7.0, 8.0])], launch_price=0.3)
    assert [entry.id for entry in chosen.run[0].entries] == [3]
    assert chosen.put_off == []


class Reads(list[float]):
    """Times that count how often they are read."""

    times_read = 0

    def __iter__(self) -> Iterator[float]:
        self.times_read += 1
        return super().__iter__()


def test_batches_that_are_all_in_time_are_counted_up_once() -> None:
    free = Reads([0.0, 0.0])
    table = [0.0, 1.0]
    in_time = [candidate([an_entry(n, 1000.0)], table) for n in range(400)]
    chosen = select(in_time, free, lambda part: candidate(part, table), 0.0)
    assert len(chosen.run) == 400
    assert free.times_read == 1


def test_a_late_batch_loses_its_oldest_rather_than_the_whole_of_another() -> None:
    table = [0.0, 5.0, 6.0, 7.0]
    first = candidate([an_entry(n, 7.0) for n in (1, 2, 3)], table)
    # Alone in front it would end at 13, too late for its first only.
    second = candidate([an_entry(4, 12.0), an_entry(5, 13.0)], table)
    chosen = selected([first, second], launch_price=0.15)
    assert [entry.id for entry in chosen.given_up] == [4]
    assert [len(batch.entries) for batch in chosen.run] == [3, 1]
    assert chosen.put_off == []


def test_a_batch_worth_little_for_its_time_gives_way() -> None:
    low = candidate([an_entry(1, 10.0, priority=Priority.LOW)], [0.0, 10.0])
    high = candidate([an_entry(2, 12.0, priority=Priority.HIGH)], [0.0, 10.0])
    chosen = selected([low, high])
    assert (chosen.run, chosen.put_off) == ([high], [low])


def test_a_batch_must_meet_the_due_time_of_its_most_urgent_wherever_that_stands() -> None:
    """Of mixed priorities the first to be given up is not the first to be due."""
    low, high = an_entry(1, 100.0), an_entry(2, 12.0, priority=Priority.HIGH)
    chosen = selected([candidate([low, high], [0.0, 10.0, 20.0])], launch_price=0.15)
    assert chosen.given_up == [low]
    assert [batch.entries for batch in chosen.run] == [[high]]


def test_a_packed_batch_is_judged_without_the_members_that_left() -> None:
    """Its time depends on which members are left: the short ones here take next to nothing."""
    entries = [an_entry(1, 5.0, length=90), an_entry(2, 9.0, length=10)]
    packed = candidate(entries, [0.0, 9.0, 10.0], without=[10.0, 1.0])
    chosen = selected([packed])
    assert [entry.id for entry in chosen.given_up] == [1]
    assert [batch.seconds for batch in chosen.run] == [1.0]


def urgent_beside_patient() -> list[Candidate]:
    """One is due before all three could be ready, the others have time."""
    return [candidate([an_entry(1, 15.0), an_entry(2, 99.0), an_entry(3, 99.0)], TEN_AND_TWO_EACH)]


TEN_AND_TWO_EACH = [0.0, 12.0, 14.0, 16.0]


def test_a_batch_is_cut_in_two_rather_than_its_most_urgent_given_up() -> None:
    chosen = selected(urgent_beside_patient(), launch_price=0.05)
    assert [[entry.id for entry in batch.entries] for batch in chosen.run] == [[1], [2, 3]]
    assert (chosen.given_up, chosen.put_off) == ([], [])


def test_nothing_is_cut_where_a_second_launch_costs_more_than_the_one_who_is_given_up() -> None:
    chosen = selected(urgent_beside_patient(), launch_price=0.2)
    assert [[entry.id for entry in batch.entries] for batch in chosen.run] == [[2, 3]]
    assert [entry.id for entry in chosen.given_up] == [1]


def test_nothing_is_cut_where_the_others_would_be_late() -> None:
    batch = candidate([an_entry(1, 15.0), an_entry(2, 25.0), an_entry(3, 25.0)], TEN_AND_TWO_EACH)
    chosen = selected([batch], launch_price=0.0)
    assert [entry.id for entry in chosen.given_up] == [1]
