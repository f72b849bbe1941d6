"""The simulated figure of adapters: at a rate that first come first served does not stand."""

from adapters_scheduling import FIRST_COME, OURS, drawn, in_time


def test_rows_of_a_hundred_adapters_are_in_time_where_first_come_first_served_is_late() -> None:
    requests = drawn(1, 4000, 1050.0)
    ours, worst = in_time(OURS, requests)
    assert ours >= 0.99
    assert worst >= 0.9
    assert in_time(FIRST_COME, requests)[0] < 0.5
