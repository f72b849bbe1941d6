"""The time of what goes alone is its own, and not that of a batch that was there before."""

from batchedmodel_sidecar.backends.upstream.link import Visit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_that_was_there_before_is_not_counted() -> None:
    clock = Clock()
    clock.now = 1.0
    visit = Visit(clock)
    clock.now = 3.0
    visit.batch_ended(0.0)
    clock.now = 3.5
    assert visit.seconds() == 0.5
    clock.now = 5.0
    visit.batch_ended(3.5)
    assert visit.seconds() == 2.0, "this one came later, and waited for it"


def test_beside_a_longer_batch_all_of_it_is_counted() -> None:
    clock = Clock()
    visit = Visit(clock)
    clock.now = 2.0
    assert visit.seconds() == 2.0
