"""The closed loop: a pod serves as its device can, and the size follows the load."""

from dataclasses import replace

import pytest

from autoscaling_loop import loop as simulated_loop
from autoscaling_loop.hpa import Autoscaler, Behavior, read_behavior
from autoscaling_loop.loop import (
    Outage,
    Result,
    Setup,
    ideal_replicas,
    run,
)
from autoscaling_loop.pods import Device, Replicas, SimulatedPod, Tally
from batchedmodel_autoscaler.replicas.formula import Target, queue_length
from batchedmodel_cli.simulator.workload import stream

DEVICE = Device(
    fixed=0.030,
    per_row=0.0015,
    max_batch_size=32,
    target_seconds=0.4,
    timeout_seconds=10.0,
    max_queue_size=1024,
)
CAPACITY = 1 / DEVICE.work
SETUP = Setup(
    device=DEVICE,
    autoscaler=Autoscaler(min_replicas=1, max_replicas=12),
    target=Target(utilization=0.8, queue_length=16, outstanding=16, queue_wait_seconds=0.5),
    startup_seconds=60.0,
)


def served(
    rate: float, *, seconds: int = 200, device: Device = DEVICE
) -> tuple[SimulatedPod, Tally]:
    """A pod that has been serving for some time."""
    tally = Tally()
    pod = SimulatedPod("pod", device, stream(1, "pod"), tally, born=0.0, ready=0.0)
    for second in range(seconds):
        pod.advance(float(second), second + 1.0, rate)
    return pod, tally


def test_a_row_is_its_share_of_a_full_batch() -> None:
    assert pytest.approx(410, abs=1) == CAPACITY


def test_below_its_capacity_a_pod_answers_all_in_time() -> None:
    pod, tally = served(0.8 * CAPACITY)
    assert tally.on_time >= 0.999 * (tally.offered - 100)
    assert tally.offered == pytest.approx(200 * 0.8 * CAPACITY, rel=0.02)
    assert sum(pod.stats(200.0).offered_work) / 59 == pytest.approx(0.8, rel=0.03)


def test_above_it_a_pod_still_answers_in_time_what_it_can() -> None:
    pod, tally = served(2 * CAPACITY)
    assert tally.on_time == pytest.approx(200 * CAPACITY, rel=0.05)
    assert pod.stats(200.0).queue_length <= DEVICE.max_queue_size


def test_rows_wait_as_long_as_littles_law_says() -> None:
    rate = 0.8 * CAPACITY
    pod, tally = served(rate)
    stats = pod.stats(200.0)
    assert stats.waited_row_seconds is not None
    assert stats.released_rows is not None
    assert stats.released_rows + stats.queue_length == tally.offered
    # About half of a batch, for those that come while one runs.
    mean = stats.waited_row_seconds / stats.released_rows
    assert 0.3 * DEVICE.seconds(20) < mean < DEVICE.seconds(20)


def test_refused_rows_were_offered_all_the_same() -> None:
    pod, _ = served(2 * CAPACITY, device=replace(DEVICE, max_queue_size=64))
    stats = pod.stats(200.0)
    assert sum(stats.offered_work) / 59 == pytest.approx(2.0, rel=0.03)
    assert stats.queue_length <= 64


def test_without_arrivals_nothing_happens() -> None:
    pod, tally = served(0.0)
    assert (pod.idle, tally.offered, pod.stats(200.0).outstanding) == (True, 0, 0)


def test_loads_are_what_their_names_say() -> None:
    stairs = simulated_loop.steps("stairs", (10, 1.0), (20, 4.0))
    assert [stairs.at(now) for now in (0, 9.9, 10, 29, 31)] == [1.0, 1.0, 4.0, 4.0, 4.0]
    slope = simulated_loop.ramp("slope", 2.0, 8.0, rest=10, climb=60)
    assert [slope.at(now) for now in (0, 40, 75, 110, 150)] == [2.0, 5.0, 8.0, 5.0, 2.0]
    wave = simulated_loop.sine("wave", 2.0, 8.0, period=100, periods=2)
    assert [round(wave.at(now), 9) for now in (0, 25, 50, 100)] == [2.0, 5.0, 8.0, 2.0]
    heard = simulated_loop.recorded("heard", [0.0, 1.0, 2.0, 12.0], bin_seconds=10.0, mean=4.0)
    assert (heard.seconds, heard.at(5.0), heard.at(15.0)) == (20.0, 6.0, 2.0)


def test_a_part_of_a_load_begins_anew() -> None:
    stairs = simulated_loop.steps("stairs", (10, 1.0), (10, 4.0), (20, 2.0))
    found = simulated_loop.part(stairs, start=5, seconds=20)
    assert [found.at(now) for now in (0, 4.9, 5, 15)] == [1.0, 1.0, 4.0, 2.0]
    assert (found.name, found.seconds, found.changes) == ("stairs", 20, 1)


def replicas(*, ready: tuple[float, ...]) -> Replicas:
    """Pods that are ready at these times."""
    found = Replicas(DEVICE)
    for number, at in enumerate(ready):
        found.add(f"pod-{number}", stream(1, f"pod-{number}"), born=0.0, ready=at)
    return found


def test_rows_go_to_pods_that_are_ready_and_stay() -> None:
    found = replicas(ready=(0.0, 0.0, 0.0, 9.0))
    found.pods[0].leaving_since = 0.0
    found.serve(0.0, 1.0, 1.0)
    offered = [sum(pod.stats(1.0).offered_work) for pod in found.pods]
    assert offered == pytest.approx([0.0, 0.5, 0.5, 0.0], abs=0.1)


def test_rows_that_no_pod_takes_are_offered_all_the_same() -> None:
    found = replicas(ready=(9.0,))
    found.serve(0.0, 2.0, 1.0)
    assert (found.tally.offered, found.tally.on_time) == (round(2 * CAPACITY), 0)


def test_a_pod_that_leaves_ends_when_its_queue_is_empty_and_one_that_starts_at_once() -> None:
    found = replicas(ready=(0.0, 0.0, 9.0))
    found.serve(0.0, 1.0, 3.0)
    busy, staying, starting = found.pods
    busy.leaving_since = starting.leaving_since = 1.0
    assert found.bury(1.0) == [starting]
    assert not busy.idle
    for second in range(1, 4):
        found.serve(second, second + 1.0, 0.0)
    assert found.bury(4.0) == [busy]
    assert found.pods == [staying]


def test_the_ideal_is_the_fewest_pods_whose_capacity_at_the_target_covers_the_load() -> None:
    assert [ideal_replicas(SETUP, amount) for amount in (0.0, 0.8, 0.81, 8.0, 99.0)] == [
        *(1, 1, 2, 10, 12)
    ]


@pytest.mark.slow
def test_a_tight_target_asks_for_more_pods_and_they_meet_it() -> None:
    hurried = replace(SETUP, device=replace(DEVICE, target_seconds=0.1))
    assert hurried.device.sustainable_share == pytest.approx(0.64, abs=0.005)
    assert ideal_replicas(hurried, 4.0) == 8
    found = run(hurried, simulated_loop.steps("more", (1, 2.5), (600, 4.0)), 1)
    assert found.sizes[0][1] == 5
    assert found.sizes[-1][1] == 8
    later = run(hurried, simulated_loop.steps("constant", (600, 4.0)), 1)
    assert later.on_time_share >= 0.995


@pytest.mark.slow
def test_equal_arguments_give_equal_runs() -> None:
    load = simulated_loop.steps("step", (60, 1.0), (120, 3.0))
    assert run(SETUP, load, 7) == run(SETUP, load, 7)
    assert run(SETUP, load, 7) != run(SETUP, load, 8)


@pytest.mark.slow
def test_a_step_is_followed_once_and_at_once() -> None:
    found = run(SETUP, simulated_loop.steps("step", (120, 2.0), (480, 8.0)), 1)
    assert found.sizes[-1][1] == 10
    assert found.sizes[-1][0] <= 120 + 4 * 15
    assert found.reversals == 0


@pytest.mark.slow
def test_a_queue_is_followed_to_and_fro() -> None:
    by_queue = replace(
        SETUP,
        autoscaler=replace(SETUP.autoscaler, average_value=16.0),
        decide=queue_length,
    )
    found = run(by_queue, simulated_loop.steps("constant", (1200, 4.0)), 1)
    assert found.reversals >= 3
    assert run(SETUP, simulated_loop.steps("constant", (1200, 4.0)), 1).events == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "outage",
    [
        pytest.param(Outage(start=100, end=160), id="nothing is heard for a minute"),
        pytest.param(Outage(start=100, end=160, silent_share=0.5), id="half is silent"),
        pytest.param(Outage(start=100, end=105, forgets=True), id="the autoscaler restarts"),
    ],
)
@pytest.mark.parametrize(
    "behavior",
    [
        pytest.param(None, id="Kubernetes' own"),
        pytest.param(
            read_behavior({"scaleDown": {"stabilizationWindowSeconds": 0}}), id="no window"
        ),
    ],
)
def test_whoever_is_blind_holds_still(outage: Outage, behavior: Behavior | None) -> None:
    setup = replace(
        SETUP,
        outages=(outage,),
        autoscaler=replace(SETUP.autoscaler, behavior=behavior),
    )
    assert run(setup, simulated_loop.steps("constant", (500, 4.0)), 1).events == 0


@pytest.mark.slow
def test_a_rise_in_the_dark_is_followed_when_it_is_light_again() -> None:
    setup = replace(SETUP, outages=(Outage(start=100, end=200),))
    sizes = run(setup, simulated_loop.steps("step", (120, 2.0), (240, 8.0)), 1).sizes
    assert [size for at, size in sizes if at < 200] == [3]
    assert sizes[-1][1] == 10


def test_a_change_that_takes_back_the_one_before_is_a_reversal() -> None:
    sizes = [(0.0, 3), (15.0, 5), (30.0, 6), (45.0, 4), (60.0, 5)]
    assert Result(sizes=sizes).reversals == 2
    assert Result(sizes=sizes).events == 4
