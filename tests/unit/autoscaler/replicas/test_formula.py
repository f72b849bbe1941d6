"""How many replicas are asked for, seeing all, a part, or nothing."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_autoscaler.replicas.formula import (
    PANIC_DEVIATIONS,
    Demand,
    ModelObservation,
    PodObservation,
    Reason,
    Target,
    Unseen,
    drain_seconds,
    outstanding,
    queue_length,
    queue_wait,
    required_replicas,
)

TARGET = Target(utilization=0.8, queue_length=32, outstanding=32, queue_wait_seconds=0.5)
REACTION = 47.0  # start-up 30 s, poll 2 s, sync 15 s


def hears(**demand: float) -> PodObservation:
    asked = Demand(**demand)
    return PodObservation(expected=True, answers=True, now=asked, last=asked)


def silent(*, last: Demand | None = None, now: Demand | None = None) -> PodObservation:
    return PodObservation(expected=True, answers=False, now=now or Demand(), last=last or Demand())


def unready(asked: Demand) -> PodObservation:
    return PodObservation(expected=False, answers=True, now=asked, last=asked)


def sight(*pods: PodObservation, present: int | None, departed: float = 0.0) -> ModelObservation:
    return ModelObservation(
        present=present,
        pods=pods,
        departed_rate=departed,
        departed_panic_rate=0.0,
        reaction_seconds=REACTION,
    )


def test_a_backlog_is_to_drain_no_faster_than_new_pods_can_come() -> None:
    assert drain_seconds(47.0, 0.8) == pytest.approx(159.7, abs=0.1)
    assert drain_seconds(1.0, 0.8) == 30.0


@pytest.mark.parametrize(
    ("rates", "backlog", "present", "expected", "reason"),
    [
        pytest.param([0.0], 0.0, 1, 0, Reason.LESS_WORK, id="no work at all"),
        pytest.param([0.8], 0.0, 1, 1, Reason.IN_BAND, id="exactly at the target"),
        pytest.param([0.87], 0.0, 1, 1, Reason.IN_BAND, id="above it by less than the band"),
        pytest.param([0.89], 0.0, 1, 2, Reason.MORE_WORK, id="above it by more"),
        pytest.param([2.0], 0.0, 1, 3, Reason.MORE_WORK, id="two pods' whole time at 80 percent"),
        pytest.param([0.8], 63.9, 1, 2, Reason.MORE_WORK, id="a backlog alone"),
        pytest.param([0.4, 0.4], 0.0, 2, 2, Reason.IN_BAND, id="one pod would have no room"),
        pytest.param([0.35, 0.35], 0.0, 2, 1, Reason.LESS_WORK, id="one pod has room"),
        pytest.param([0.8] * 10, 0.0, 10, 10, Reason.IN_BAND, id="ten pods at the target"),
        pytest.param([0.89] * 10, 0.0, 10, 12, Reason.MORE_WORK, id="ten pods above it"),
        pytest.param([0.6] * 10, 0.0, 10, 9, Reason.LESS_WORK, id="ten pods below it"),
        pytest.param([0.1], 0.0, 5, 1, Reason.LESS_WORK, id="most pods are not made yet"),
    ],
)
def test_replicas_follow_work_and_backlog(
    rates: list[float], backlog: float, present: int, expected: int, reason: Reason
) -> None:
    pods = [hears(work_rate=rate) for rate in rates]
    pods.append(hears(backlog=backlog))
    verdict = required_replicas(sight(*pods, present=present), TARGET)
    assert (verdict.value, verdict.reason) == (expected, reason)


def test_a_sudden_rise_counts_before_the_minute_shows_it() -> None:
    verdict = required_replicas(sight(hears(work_rate=1.3, panic_rate=4.0), present=1), TARGET)
    assert (verdict.value, verdict.reason) == (5, Reason.MORE_WORK)
    assert "by the last 6 s" in verdict.sentence


def test_a_rise_within_what_chance_makes_of_seconds_does_not() -> None:
    noisy = hears(work_rate=0.8, panic_rate=2.4, panic_variance=0.64)
    verdict = required_replicas(sight(noisy, present=1), TARGET)
    assert (verdict.value, verdict.reason) == (1, Reason.IN_BAND)
    assert "by the last 60 s" in verdict.sentence


def test_of_a_rise_beyond_chance_what_is_sure_counts() -> None:
    noisy = hears(work_rate=0.8, panic_rate=4.8, panic_variance=0.64)
    verdict = required_replicas(sight(noisy, present=1), TARGET)
    assert verdict.value == 4  # (4.8 - 2 x 0.8) / 0.8


def test_a_lull_of_seconds_is_no_calm() -> None:
    verdict = required_replicas(sight(hears(work_rate=2.4, panic_rate=0.0), present=3), TARGET)
    assert verdict.value == 3


def test_a_rise_that_moves_from_pod_to_pod_is_none() -> None:
    pods = [hears(work_rate=0.8, panic_rate=1.6), hears(work_rate=0.8, panic_rate=0.0)]
    assert required_replicas(sight(*pods, present=2), TARGET).value == 2


def test_a_high_target_leaves_no_band_above_a_pods_whole_time() -> None:
    tight = replace(TARGET, utilization=0.95)
    verdict = required_replicas(sight(hears(work_rate=0.99), present=1), tight)
    assert verdict.value == 2


def test_work_that_was_offered_to_pods_since_gone_counts() -> None:
    verdict = required_replicas(sight(hears(), present=1, departed=1.6), TARGET)
    assert verdict.value == 2


def test_without_a_profile_full_batches_count() -> None:
    verdict = required_replicas(sight(hears(batches=2.5), present=1), TARGET)
    assert verdict.value == 3


@pytest.mark.parametrize(
    ("pods", "present", "expected", "reason"),
    [
        pytest.param(
            [hears(work_rate=2.4), silent()], 2, 3, Reason.MORE_WORK_ALREADY,
            id="those that answer need more by themselves",
        ),
        pytest.param(
            [hears(work_rate=0.0), silent()], 2, 2, Reason.HELD,
            id="the silent one may be busy, so that two are needed",
        ),
        pytest.param(
            [hears(), hears(), hears(), silent()], 4, 2, Reason.LESS_WORK_AT_WORST,
            id="even with a busy silent one two are enough",
        ),
        pytest.param(
            [hears(), hears(), hears(), silent(last=Demand(work_rate=2.8))], 4, 4, Reason.HELD,
            id="the silent one had told of much work",
        ),
        pytest.param(
            [hears(work_rate=0.8), silent(last=Demand(work_rate=2.8))], 2, 2, Reason.HELD,
            id="what the silent one had told of adds no pod",
        ),
        pytest.param(
            [hears(work_rate=0.8), silent(now=Demand(work_rate=1.6), last=Demand(work_rate=1.6))],
            2, 3, Reason.MORE_WORK_ALREADY,
            id="what arrived in the last minute counts although its pod is silent now",
        ),
    ],
)  # fmt: skip
def test_silence_is_never_read_as_calm(
    pods: list[PodObservation], present: int, expected: int, reason: Reason
) -> None:
    verdict = required_replicas(sight(*pods, present=present), TARGET)
    assert (verdict.value, verdict.reason) == (expected, reason)


@pytest.mark.parametrize("decide", [required_replicas, queue_length])
@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([], id="no pods"),
        pytest.param([silent()], id="its only pod is silent"),
        pytest.param([silent(last=Demand(work_rate=3.0)), silent()], id="all are silent"),
        pytest.param(
            [silent(), unready(Demand())],
            id="only one that is not ready answers",
        ),
    ],
)
def test_who_hears_nobody_says_so(decide, pods: list[PodObservation]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Unseen, match="ready pods answers"):
        decide(sight(*pods, present=3), TARGET)


def test_without_a_known_size_there_is_no_answer() -> None:
    with pytest.raises(Unseen, match="size of its Deployment"):
        required_replicas(sight(hears(work_rate=0.4), present=None), TARGET)


def test_pods_that_load_their_model_are_heard_though_none_is_ready() -> None:
    loading = unready(Demand(batches=4.0))
    assert required_replicas(sight(loading, present=1), TARGET).value == 4


@pytest.mark.parametrize(("decide", "held"), [(required_replicas, 8.0), (queue_length, 256.0)])
def test_calm_pods_of_which_none_is_ready_hold_the_size(decide, held: float) -> None:  # type: ignore[no-untyped-def]
    pods = [unready(Demand())] * 8
    verdict = decide(sight(*pods, present=8), TARGET)
    assert (verdict.value, verdict.reason) == (held, Reason.NONE_READY)
    assert "no pod is ready" in verdict.sentence


def test_one_ready_pod_is_enough_to_need_fewer() -> None:
    pods = [hears(work_rate=0.4), *[unready(Demand())] * 7]
    verdict = required_replicas(sight(*pods, present=8), TARGET)
    assert (verdict.value, verdict.reason) == (1, Reason.LESS_WORK)


def test_the_queue_is_the_sum_of_all_pods() -> None:
    verdict = queue_length(
        sight(hears(queue_length=20.5), hears(queue_length=3), present=2), TARGET
    )
    assert verdict.value == pytest.approx(23.5)


def test_a_silent_pods_queue_holds_the_size() -> None:
    verdict = queue_length(sight(hears(queue_length=0), silent(), present=2), TARGET)
    assert (verdict.value, verdict.reason) == (64.0, Reason.HELD)


# Properties.

_AMOUNTS = st.floats(min_value=0, max_value=50, allow_nan=False)
_DEMANDS = st.builds(
    Demand,
    work_rate=_AMOUNTS,
    panic_rate=_AMOUNTS,
    panic_variance=_AMOUNTS,
    backlog=_AMOUNTS,
    batches=_AMOUNTS,
    queue_length=_AMOUNTS,
)
_SIZES = st.integers(min_value=1, max_value=60)
_TARGETS = st.floats(0.2, 0.95).map(lambda share: replace(TARGET, utilization=share))


@pytest.mark.slow
@given(st.lists(_DEMANDS, min_size=1, max_size=6), _AMOUNTS, _SIZES, _TARGETS)
def test_more_work_never_means_fewer_replicas(
    demands: list[Demand], more: float, present: int, target: Target
) -> None:
    pods = [PodObservation(expected=True, answers=True, now=one, last=one) for one in demands]
    less = required_replicas(sight(*pods, present=present), target)
    another = hears(work_rate=more, panic_rate=more)
    busier = required_replicas(sight(*pods, another, present=present), target)
    assert busier.value >= less.value


@pytest.mark.slow
@given(st.lists(_DEMANDS, min_size=1, max_size=6), _SIZES, _TARGETS)
def test_the_answer_lies_between_the_present_size_and_what_the_work_needs(
    demands: list[Demand], present: int, target: Target
) -> None:
    pods = [PodObservation(expected=True, answers=True, now=one, last=one) for one in demands]
    drain = drain_seconds(REACTION, target.utilization)
    chance = math.sqrt(sum(one.panic_variance for one in demands))
    sure = sum(one.panic_rate for one in demands) - PANIC_DEVIATIONS * chance
    rate = max(sum(one.work_rate for one in demands), sure)
    backlog = sum(one.backlog for one in demands) / drain
    need = (rate + backlog) / target.utilization + sum(one.batches for one in demands)
    value = required_replicas(sight(*pods, present=present), target).value
    assert value == int(value)
    assert min(present, need - 1e-6) <= value <= max(present, need + 1)


@given(st.lists(_DEMANDS, min_size=1, max_size=6), _SIZES, _TARGETS)
def test_an_answer_that_was_followed_stands(
    demands: list[Demand], present: int, target: Target
) -> None:
    """Nothing swings: with the size that was asked for, the same work asks for no other."""
    pods = [PodObservation(expected=True, answers=True, now=one, last=one) for one in demands]
    first = required_replicas(sight(*pods, present=present), target)
    again = required_replicas(sight(*pods, present=int(first.value)), target)
    assert again.value == first.value


@pytest.mark.slow
@given(
    st.lists(st.tuples(_DEMANDS, st.booleans()), min_size=1, max_size=6),
    st.lists(_DEMANDS, min_size=1, max_size=4),
    _SIZES,
    _TARGETS,
)
def test_a_partly_blind_answer_is_never_below_the_same_pods_heard_at_their_target(
    heard: list[tuple[Demand, bool]], missing: list[Demand], present: int, target: Target
) -> None:
    pods = [PodObservation(expected=True, answers=True, now=one, last=one) for one, _ in heard]
    blind = [silent(last=one) for one in missing]
    value = required_replicas(sight(*pods, *blind, present=present), target).value
    assert value > 0
    if value < present:
        full = [hears(batches=max(1.0, one.batches)) for one in missing]
        assert value >= required_replicas(sight(*pods, *full, present=present), target).value


@given(st.lists(_DEMANDS, min_size=1, max_size=6), _SIZES, _TARGETS)
def test_without_a_ready_pod_no_answer_is_below_the_present_size(
    demands: list[Demand], present: int, target: Target
) -> None:
    pods = [unready(one) for one in demands]
    found = sight(*pods, present=present)
    heard = sight(
        *[PodObservation(expected=True, answers=True, now=one, last=one) for one in demands],
        present=present,
    )
    assert queue_length(found, target).value >= present * target.queue_length
    assert required_replicas(found, target).value == max(
        present, required_replicas(heard, target).value
    )


def test_rows_outstanding_are_those_of_all_pods() -> None:
    pods = [hears(outstanding=40.0), hears(outstanding=60.0)]
    verdict = outstanding(sight(*pods, present=2), TARGET)
    assert (verdict.value, verdict.reason) == (100.0, Reason.MORE_WORK)


def test_a_wait_asks_for_as_many_times_the_pods_as_it_is_too_long() -> None:
    verdict = queue_wait(sight(*[hears(queue_wait=1.0)] * 3, present=3), TARGET)
    assert verdict.value / TARGET.queue_wait_seconds == 6.0


def test_a_wait_orders_nothing_twice_while_pods_start() -> None:
    starting = [unready(Demand())] * 3
    verdict = queue_wait(sight(*[hears(queue_wait=1.0)] * 3, *starting, present=6), TARGET)
    assert verdict.value / TARGET.queue_wait_seconds == 6.0


def test_a_wait_that_is_not_known_yet_is_silence_and_no_calm() -> None:
    unknown = replace(hears(), now=Demand(queue_wait=None))
    with pytest.raises(Unseen):
        queue_wait(sight(unknown, present=1), TARGET)
    verdict = queue_wait(sight(unknown, hears(queue_wait=0.0), present=2), TARGET)
    assert (verdict.value, verdict.reason) == (1.0, Reason.HELD)
    assert queue_length(sight(unknown, present=1), TARGET).value == 0.0


@pytest.mark.parametrize("decide", [queue_length, outstanding, queue_wait])
def test_no_ready_pod_takes_none_away(decide) -> None:  # type: ignore[no-untyped-def]
    verdict = decide(sight(unready(Demand()), present=2), TARGET)
    assert verdict.reason is Reason.NONE_READY
