"""Random streams by seed and name."""

from batchedmodel_scheduling.simulator.streams import stream


def test_a_stream_repeats_for_an_equal_seed_and_name() -> None:
    assert stream(7, "arrivals").random(5).tolist() == stream(7, "arrivals").random(5).tolist()


def test_another_name_or_seed_is_another_stream() -> None:
    names = [(7, "arrivals"), (7, "lengths"), (8, "arrivals"), (70, "arrivals"), (-7, "arrivals")]
    assert len({stream(seed, name).random() for seed, name in names}) == len(names)


def test_a_stream_is_the_same_on_every_machine() -> None:
    assert stream(1, "arrivals").integers(1_000_000, size=3).tolist() == [638056, 68635, 154535]
