"""The work of pods and of runs of sidecars that are over: it is kept, and kept within bounds."""

from dataclasses import replace

import pytest

from batchedmodel_autoscaler.replicas.windows import WINDOW_SECONDS, Window
from batchedmodel_autoscaler.state.cluster_state import (
    MOST_OF_A_MODEL,
    MOST_OF_A_POD,
    ClusterState,
    Departed,
)
from batchedmodel_contract.processes.stats import BUCKETS
from support.autoscaler_world import CALM, KEY, busy, fleet, pod
from support.steps import steps

NOW = 1000.0


def window(received: float) -> Window:
    return Window(received=received, age_seconds=3600.0, buckets=(1.0,) * BUCKETS)


def told(*received: float, uid: str = "uid-1") -> list[float]:
    """When those windows came that are kept."""
    departed = Departed()
    for one in received:
        departed.add(uid, window(one))
    return [one.received for one in departed.windows]


def test_each_counts_until_its_minute_is_over() -> None:
    assert told(NOW, NOW + 30) == [NOW, NOW + 30]
    assert told(NOW, NOW + 30, NOW + WINDOW_SECONDS) == [NOW + 30, NOW + WINDOW_SECONDS]


def test_one_pod_leaves_only_so_many_behind_until_they_are_over() -> None:
    received = [NOW + number for number in range(20)]
    assert told(*received) == received[:MOST_OF_A_POD]
    later = NOW + 20 + WINDOW_SECONDS
    assert told(*received, later) == [later]


def test_those_of_other_pods_are_not_counted_against_it() -> None:
    departed = Departed()
    for number in range(3 * MOST_OF_A_POD):
        departed.add(f"uid-{number % 3}", window(NOW))
    departed.add("uid-3", window(NOW))
    assert len(departed.windows) == 3 * MOST_OF_A_POD + 1


def test_of_too_many_pods_the_oldest_are_forgotten() -> None:
    departed = Departed()
    for number in range(MOST_OF_A_MODEL + 5):
        departed.add(f"uid-{number}", window(NOW + number / 1000))
    assert len(departed.windows) == MOST_OF_A_MODEL
    assert departed.windows[0].received == pytest.approx(NOW + 0.005)


def cost_of_answers(pods: int) -> int:
    """Steps of a minute of them, one every two seconds of each pod, each of another run."""
    known: ClusterState = fleet([pod(number) for number in range(pods)])
    answers = [replace(busy(0.6), instance=str(number)) for number in range(30)]

    def take_in() -> None:
        for tick, answer in enumerate(answers):
            for number in range(pods):
                known.answered(f"uid-{number}", answer, NOW + 2 * tick + 2 * number / pods)

    return steps(take_in)


def test_sidecars_that_change_at_every_answer_cost_as_much_as_there_are() -> None:
    few, many = cost_of_answers(50), cost_of_answers(200)
    assert many < 6 * few, "sixteen times as long where all that left are looked through"


def test_a_sidecar_that_starts_anew_a_few_times_loses_nothing() -> None:
    known = fleet([pod(1)])
    young = replace(CALM, age_seconds=5.0, offered_work=(0.0,) * (BUCKETS - 5) + (2.0,) * 5)
    for number in range(5):
        known.answered("uid-1", replace(young, instance=str(number)), NOW + 10 * number)
    sight = known.observation(KEY, NOW + 40)
    assert sight.departed_rate == pytest.approx(4 * 10.0 / 25.0), "of 25 seconds something is told"
