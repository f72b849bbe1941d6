"""Values in order: the same as sorting them each time."""

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.generation.waiting import Ordered
from support.steps import steps

STEPS = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(-3, 3)), max_size=300)


@given(STEPS)
def test_the_first_is_the_one_of_the_lowest_key_whatever_came_and_went(
    done: list[tuple[int, int | None]],
) -> None:
    order, model = Ordered[int, str](), dict[int, tuple[int, int]]()
    for number, (name, key) in enumerate(done):
        if key is None:
            order.discard(name)
            model.pop(name, None)
        else:
            order.put(name, (float(key),), f"value {name}")
            model[name] = (key, number)
        assert len(order) == len(model)
        assert (name in order) == (name in model)
        first = min(model, key=model.__getitem__, default=None)
        assert order.first() == (None if first is None else f"value {first}")
        assert order.first_key() == (None if first is None else (model[first][0],))


def test_what_moves_again_and_again_takes_no_more_memory() -> None:
    order = Ordered[int, int]()
    order.put(0, (0.0,), 0)
    for number in range(10_000):
        order.put(1 + number % 3, (1.0,), number)
    assert len(order._heap) < 200


def test_the_first_of_many_costs_little_more_than_the_first_of_few() -> None:
    def cost(many: int) -> int:
        order = Ordered[int, int]()
        for number in range(many):
            order.put(number, (float(number),), number)

        def act() -> None:
            order.discard(0)
            order.first()
            order.put(0, (5.0,), 1)

        return steps(act)

    assert cost(4000) < 2 * cost(40)
