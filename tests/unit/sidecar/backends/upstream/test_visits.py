"""The time of what goes alone is its own, and not that of a batch that was there before."""

from batchedmodel_sidecar.backends.upstream.visits import Visits


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_that_was_there_before_is_not_counted() -> None:
    clock = Clock()
    visits = Visits(clock)
    with visits.batch():
        clock.now = 1.0
        visit = visits.one()
        there = visit.__enter__()
        clock.now = 3.0
    clock.now = 3.5
    assert there.seconds() == 0.5
    with visits.batch():
        clock.now = 5.0
    assert there.seconds() == 2.0, "this one came later, and waited for it"
    assert len(visits) == 1
    visit.__exit__(None, None, None)
    assert len(visits) == 0


def test_beside_a_longer_batch_all_of_it_is_counted() -> None:
    clock = Clock()
    visits = Visits(clock)
    with visits.batch(), visits.one() as there:
        clock.now = 2.0
        assert there.seconds() == 2.0
