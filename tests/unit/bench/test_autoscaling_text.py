"""Pods of a language model in the closed loop: they tell what they do, and the size follows."""

from dataclasses import replace

import pytest

from autoscaling import TEXT, quiet, setup_of
from autoscaling_loop.loop import Result, run
from autoscaling_loop.text_pods import TextDevice, TextReplicas
from autoscaling_text import text_device
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.processes.stats import BUCKETS

DEVICE = text_device(limited=True)


def served(amount: float, *, seconds: int = 150, device: TextDevice = DEVICE) -> TextReplicas:
    """Two pods that have been serving for some time."""
    replicas = device.replicas()
    for number in range(2):
        replicas.add(f"pod-{number}", stream(1, f"pod-{number}"), born=0.0, ready=0.0)
    for second in range(seconds):
        replicas.serve(float(second), second + 1.0, amount)
    return replicas


def offered(replicas: TextReplicas, now: float) -> float:
    """Work a second that the pods tell of, together."""
    told = [pod.stats(now) for pod in replicas.pods]
    return sum(sum(one.offered_work) for one in told) / (BUCKETS - 1)


def test_pods_tell_about_as_much_work_as_a_full_engine_takes_for_it() -> None:
    replicas = served(1.0)
    assert offered(replicas, 150.0) == pytest.approx(1.0, rel=0.35)
    told = replicas.pods[0].stats(150.0)
    assert told.max_batch_size == 32
    assert told.model_ready
    assert not told.draining
    assert told.backlog_work > 0
    assert replicas.tally.on_time >= 0.9 * replicas.tally.offered


def test_a_cache_in_use_counts_as_work_where_it_is_the_scarcer() -> None:
    scarce = replace(DEVICE, engine=replace(DEVICE.engine, cache_tokens=20_000))
    plain, pressed = served(0.5), served(0.5, device=scarce)
    assert offered(pressed, 150.0) > 1.2 * offered(plain, 150.0)


def test_a_pod_that_leaves_ends_when_its_streams_have() -> None:
    replicas = served(1.0)
    gone = replicas.pods[0]
    gone.leaving_since = 150.0
    assert replicas.bury(150.0) == []
    for second in range(150, 200):
        replicas.serve(float(second), second + 1.0, 0.2)
    assert replicas.bury(200.0) == [gone]
    assert len(replicas.pods) == 1


def test_calls_that_no_pod_takes_are_offered_and_not_on_time() -> None:
    replicas = DEVICE.replicas()
    replicas.serve(0.0, 10.0, 1.0)
    assert replicas.tally.offered == round(10 / DEVICE.work)
    assert replicas.tally.on_time == 0


@pytest.mark.slow
def test_a_constant_load_gets_about_the_pods_that_it_keeps_busy() -> None:
    load = replace(quiet(), seconds=600.0)

    def once() -> Result:
        return run(setup_of(TEXT, 2001), load, 2001)

    result = once()
    assert result.cost <= 1.35
    assert result.on_time_share >= 0.9
    assert result.reversals == 0
