"""The scaling benchmark asks for what it says it does."""

from dataclasses import replace

import pytest

import autoscaling
from autoscaling import (
    CONCURRENCY,
    DEFAULT,
    QUEUE,
    SLOW,
    WAIT,
    Scaling,
    once,
    setup_of,
)
from autoscaling_loop.loop import Outage
from batchedmodel_autoscaler.replicas.formula import (
    outstanding,
    queue_length,
    queue_wait,
    required_replicas,
)


def test_the_default_is_what_a_manifest_without_wishes_gets() -> None:
    setup = setup_of(DEFAULT, seed=1)
    assert setup.autoscaler.behavior is not None
    assert setup.autoscaler.behavior.down.window_seconds == 300
    assert setup.autoscaler.average_value == 1.0
    assert setup.target.utilization == 0.8
    assert setup.decide is required_replicas


def test_the_queue_is_scaled_on_by_its_own_metric_and_target() -> None:
    setup = setup_of(QUEUE, seed=1)
    assert (setup.autoscaler.average_value, setup.decide) == (32, queue_length)


@pytest.mark.parametrize(
    ("way", "average", "decide"), [(CONCURRENCY, 32, outstanding), (WAIT, 0.2, queue_wait)]
)
def test_other_gauges_too(way: Scaling, average: float, decide: object) -> None:
    setup = setup_of(way, seed=1)
    assert (setup.autoscaler.average_value, setup.decide) == (average, decide)


def test_the_behaviour_is_that_of_pods_whose_start_has_been_learnt() -> None:
    behavior = setup_of(SLOW, seed=1).autoscaler.behavior
    assert behavior is not None
    assert behavior.down.window_seconds == 660


def test_names_of_ways_to_scale_are_their_own() -> None:
    ways = [one for one in vars(autoscaling).values() if isinstance(one, Scaling)]
    assert len(ways) > 5
    assert len({way.name for way in ways}) == len(ways)


def test_the_trace_has_the_mean_that_was_asked_for() -> None:
    load = autoscaling.trace()
    amounts = [load.at(second) for second in range(0, int(load.seconds), 10)]
    assert sum(amounts) / len(amounts) == pytest.approx(4.0)


@pytest.mark.parametrize("outage", autoscaling.OUTAGES.values(), ids=autoscaling.OUTAGES)
def test_an_outage_lies_within_the_run(outage: Outage) -> None:
    assert 0 < outage.start < outage.end < autoscaling.quiet().seconds


@pytest.mark.slow
def test_where_in_its_rhythm_a_load_meets_the_hpa_differs_from_seed_to_seed() -> None:
    offsets = {setup_of(DEFAULT, seed).sync_offset % 15 for seed in range(2001, 2006)}
    assert len(offsets) == 5
    assert once(replace(DEFAULT), autoscaling.quiet, 3).events == 0
