"""Modelled devices, and what disturbs them."""

import numpy as np
import pytest

from batchedmodel_scheduling.queue.items import Item, ItemId
from scheduling_bench.affine import Affine
from scheduling_bench.plants import Disturbances, DisturbedPlant

CURVE = Affine(fixed=0.005, per_row=0.001)
SECOND = 1_000_000_000


def rows(count: int) -> list[Item]:
    return [
        Item(id=ItemId(n), key="", length=1, arrived=0.0, due=1.0, deadline=1.0)
        for n in range(count)
    ]


def durations(disturbances: Disturbances, seed: int = 1, name: str = "device") -> np.ndarray:
    plant = DisturbedPlant(curve=CURVE, disturbances=disturbances, seed=seed, name=name)
    return np.array([plant.duration(rows(5), 0) for _ in range(5000)]) / 10_000_000


def test_an_undisturbed_plant_keeps_to_its_curve() -> None:
    plant = DisturbedPlant(curve=CURVE, hand_off_seconds=0.0005, depth=2)
    assert (plant.depth, plant.hand_off) == (2, 500_000)
    assert [plant.duration(rows(count), 0) for count in (1, 20)] == [6_000_000, 25_000_000]


def test_a_batch_takes_time_even_if_its_curve_says_none() -> None:
    assert DisturbedPlant(curve=Affine(fixed=0)).duration(rows(1), 0) == 1


def test_noise_is_lognormal_with_the_curve_as_its_median() -> None:
    logarithms = np.log(durations(Disturbances(noise=0.05)))
    assert np.median(logarithms) == pytest.approx(0, abs=0.003)
    assert logarithms.std() == pytest.approx(0.05, rel=0.05)


def test_stragglers_come_as_often_and_as_slow_as_said() -> None:
    found = durations(Disturbances(straggler_probability=0.1, straggler_factor=4))
    assert set(found) == {1.0, 4.0}
    assert np.mean(found == 4) == pytest.approx(0.1, rel=0.1)


def test_noise_repeats_for_an_equal_seed_and_name_only() -> None:
    noise = Disturbances(noise=0.05)
    assert np.array_equal(durations(noise), durations(noise))
    assert not np.array_equal(durations(noise), durations(noise, seed=2))
    assert not np.array_equal(durations(noise), durations(noise, name="other"))


def test_stragglers_leave_the_noise_as_it_is() -> None:
    noisy = durations(Disturbances(noise=0.01))
    both = durations(Disturbances(noise=0.01, straggler_probability=0.1, straggler_factor=4))
    assert np.allclose(noisy, np.where(both > 2, both / 4, both))


def test_the_last_drift_that_has_begun_counts() -> None:
    plant = DisturbedPlant(curve=CURVE, disturbances=Disturbances(drift=((1, 1.4), (2, 0.6))))
    at = (0, SECOND - 1, SECOND, 2 * SECOND, 9 * SECOND)
    assert [plant.duration(rows(5), now) / 10_000_000 for now in at] == [1, 1, 1.4, 0.6, 0.6]
