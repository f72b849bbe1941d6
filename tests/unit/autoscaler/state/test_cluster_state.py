"""What is remembered of pods, those that restarted or have gone included."""

import tracemalloc
from dataclasses import replace

import pytest

from batchedmodel_autoscaler.cluster.objects import ModelKey
from batchedmodel_autoscaler.errors import NotFound
from batchedmodel_autoscaler.replicas.formula import Unseen, required_replicas
from batchedmodel_autoscaler.replicas.windows import History, Window, covered_seconds
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.state.pace import MOST_POLLS_PER_SECOND
from batchedmodel_contract.processes.stats import BUCKETS
from batchedmodel_kube.capacity import Capacity
from support.autoscaler_world import CALM, DEPLOYMENT, KEY, MODEL, REPLICA_SET, busy, fleet, pod

NOW = 1000.0


def rate(known: ClusterState, now: float = NOW) -> float:
    """Device-seconds per second that the fleet sees offered."""
    sight = known.observation(KEY, now)
    return sight.departed_rate + sum(one.now.work_rate for one in sight.pods)


def test_the_rate_is_that_of_all_pods_together() -> None:
    known = fleet([pod(1), pod(2)])
    known.answered("uid-1", busy(0.5), NOW)
    known.answered("uid-2", busy(0.25), NOW)
    assert rate(known) == pytest.approx(0.75, rel=0.02)


def test_an_answer_that_ages_loses_what_leaves_the_minute() -> None:
    window = Window(received=NOW, age_seconds=100, buckets=tuple(float(i) for i in range(BUCKETS)))
    assert window.work(NOW) == sum(range(60))
    assert window.work(NOW + 10) == sum(range(10, 60))
    assert window.work(NOW + 10.5) == sum(range(10, 60)) - 5.0
    assert window.work(NOW + 60) == 0.0
    assert window.over(NOW + 60)


def test_the_panic_window_is_the_last_six_whole_seconds() -> None:
    buckets = (0.0,) * 53 + (3.0,) * 6 + (100.0,)
    window = Window(received=NOW, age_seconds=3600, buckets=buckets)
    assert window.panic_rate == pytest.approx(3.0)
    assert window.work(NOW + 2, 6.0) == pytest.approx(100.0 + 3 * 3.0)
    assert window.work(NOW + 6, 6.0) == 0.0


def test_chance_is_told_from_a_rise_by_how_seconds_follow_each_other() -> None:
    def window(*buckets: float, age: float = 3600) -> Window:
        return Window(received=NOW, age_seconds=age, buckets=buckets)

    constant = window(*(2.0,) * BUCKETS)
    assert constant.panic_variance == 0.0
    heavy = window(*(0.0, 4.0) * 30)  # a variance of 4 by the second, 8 by their differences
    assert heavy.panic_variance == pytest.approx(58 * 16 / (2 * 58 * 6))
    risen = window(*(1.0,) * 53, *(4.0,) * 7)
    assert risen.panic_variance == pytest.approx(9 / (2 * 58 * 6))
    young = window(*(0.0,) * 50, *(2.0, 4.0) * 5, age=8.0)
    assert young.panic_variance == pytest.approx(4 / (2 * 6))


def test_a_sudden_rise_is_seen_in_all_pods_together_those_gone_included() -> None:
    known = fleet([pod(1), pod(2)])
    rising = (0.2,) * 53 + (2.0,) * 7
    for uid in ("uid-1", "uid-2"):
        known.answered(uid, replace(CALM, offered_work=rising), NOW)
    known.pod_gone(pod(2))
    sight = known.observation(KEY, NOW)
    assert sight.pods[0].now.panic_rate == pytest.approx(2.0)
    assert sight.departed_panic_rate == pytest.approx(2.0)
    assert known.observation(KEY, NOW + 6).departed_panic_rate == 0.0


def test_work_counts_as_the_time_that_it_takes_within_the_latency_target() -> None:
    known = fleet([pod(1), pod(2)])
    known.answered("uid-1", busy(0.5, sustainable_share=0.5), NOW)
    known.answered("uid-2", busy(0.25), NOW)
    assert rate(known) == pytest.approx(1.25, rel=0.02)
    rates = sorted(one.now.panic_rate for one in known.observation(KEY, NOW).pods)
    assert rates == pytest.approx([0.25, 1.0])


def test_a_missed_poll_loses_nothing() -> None:
    known = fleet([pod(1)])
    known.answered("uid-1", busy(0.0), NOW - 8)
    known.answered("uid-1", busy(0.6), NOW)
    assert rate(known) == pytest.approx(0.6, rel=0.02)


def test_work_offered_to_a_pod_that_has_gone_counts_until_its_minute_is_over() -> None:
    known = fleet([pod(1), pod(2)])
    known.answered("uid-1", busy(0.6), NOW)
    known.answered("uid-2", busy(0.6), NOW)
    known.pod_gone(pod(2))
    assert rate(known) == pytest.approx(1.2, rel=0.02)
    known.answered("uid-1", busy(0.6), NOW + 30)
    assert rate(known, NOW + 30) == pytest.approx(0.9, rel=0.02)
    known.answered("uid-1", busy(0.6), NOW + 60)
    assert rate(known, NOW + 60) == pytest.approx(0.6, rel=0.02)


def test_a_sidecar_that_restarts_forgets_nothing_for_us() -> None:
    known = fleet([pod(1)])
    known.answered("uid-1", busy(0.6), NOW)
    fresh = replace(CALM, instance="second", age_seconds=1.0)
    known.answered("uid-1", fresh, NOW + 2)
    assert rate(known, NOW + 2) == pytest.approx(0.6, rel=0.05)


def test_a_young_model_is_judged_by_the_time_it_has_been_counting() -> None:
    known = fleet([pod(1)])
    work = (0.0,) * 40 + (0.9,) * 20
    known.answered("uid-1", replace(CALM, offered_work=work, age_seconds=20.0), NOW)
    assert rate(known) == pytest.approx(0.9)


def test_a_models_first_second_is_no_rate_yet() -> None:
    known = fleet([pod(1)])
    burst = replace(CALM, offered_work=(0.0,) * 59 + (5.0,), age_seconds=1.0)
    known.answered("uid-1", burst, NOW)
    assert rate(known) == pytest.approx(0.5)


def test_time_that_two_windows_share_is_covered_once() -> None:
    def window(received: float, age: float) -> Window:
        return Window(received=received, age_seconds=age, buckets=(0.0,) * BUCKETS)

    assert covered_seconds([window(NOW, 10), window(NOW - 5, 10)], NOW) == pytest.approx(15)
    assert covered_seconds([window(NOW, 10), window(NOW - 30, 10)], NOW) == pytest.approx(20)
    assert covered_seconds([window(NOW, 3600)], NOW) == pytest.approx(59.5)
    assert covered_seconds([window(NOW - 90, 10)], NOW) == 0
    assert covered_seconds([], NOW) == 0


def test_gauges_are_averages_of_half_a_minute() -> None:
    history = History()
    for second, queue in ((0, 1000), (35, 10), (40, 20), (45, 30)):
        history.record(replace(CALM, queue_length=queue), NOW + second)
    assert history.gauges().queue_length == 20


def test_a_restarted_sidecar_starts_its_averages_anew() -> None:
    history = History()
    history.record(replace(CALM, queue_length=1000), NOW)
    history.record(replace(CALM, instance="second", queue_length=10), NOW + 2)
    assert history.gauges().queue_length == 10


def test_a_wait_is_that_of_the_rows_between_two_answers() -> None:
    history = History()
    for second, waited, released in ((0, 1000.0, 5000), (2, 1003.0, 5006), (4, 1008.0, 5010)):
        stats = replace(CALM, waited_row_seconds=waited, released_rows=released)
        history.record(stats, NOW + second)
    assert history.gauges().queue_wait == pytest.approx(8.0 / 10)


def test_a_wait_needs_two_answers_or_a_young_sidecar() -> None:
    history = History()
    history.record(replace(CALM, waited_row_seconds=1000.0, released_rows=500), NOW)
    assert history.gauges().queue_wait is None
    young = replace(CALM, instance="b", age_seconds=9.0, waited_row_seconds=20.0, released_rows=10)
    history.record(young, NOW + 2)
    assert history.gauges().queue_wait == 2.0


def test_where_nothing_leaves_rows_waited_for_as_long_as_they_were_seen_to() -> None:
    history = History()
    for second in (0, 10):
        waited = 40.0 * second
        stats = replace(CALM, waited_row_seconds=waited, released_rows=3, queue_length=40)
        history.record(stats, NOW + second)
    assert history.gauges().queue_wait == 10.0


def test_a_wait_is_never_negative_whatever_a_pod_answers() -> None:
    history = History()
    for second, released in ((0, 500), (2, 3)):
        stats = replace(CALM, waited_row_seconds=10.0 + second, released_rows=released)
        history.record(stats, NOW + second)
    assert history.gauges().queue_wait == 2.0


def test_a_sidecar_of_an_earlier_version_tells_no_wait() -> None:
    history = History()
    for second in (0, 2):
        history.record(replace(CALM, waited_row_seconds=None, released_rows=None), NOW + second)
    assert history.gauges().queue_wait is None


def test_before_a_profile_rows_count_and_work_does_not() -> None:
    known = fleet([pod(1)])
    stats = busy(7.0, profile_known=False, outstanding=80, backlog_work=9.0)
    known.answered("uid-1", stats, NOW)
    asked = known.observation(KEY, NOW).pods[0].now
    assert (asked.work_rate, asked.backlog, asked.batches) == (0.0, 0.0, 2.5)


def test_a_pod_with_several_workers_holds_a_full_batch_on_each_of_them() -> None:
    known = fleet([pod(1)])
    stats = busy(7.0, profile_known=False, outstanding=80, max_concurrent_batches=5)
    known.answered("uid-1", stats, NOW)
    assert known.observation(KEY, NOW).pods[0].now.batches == 0.5


def test_what_waits_in_a_leaving_pod_is_its_own_affair_but_its_callers_come_again() -> None:
    known = fleet([pod(1), pod(2, leaving=True)], present=1)
    known.answered("uid-1", busy(0.3), NOW)
    known.answered("uid-2", busy(0.3, backlog_work=50.0, queue_length=500), NOW)
    asked = [one.now for one in known.observation(KEY, NOW).pods]
    assert [(one.backlog, one.queue_length) for one in asked] == [(0, 0), (0, 0)]
    assert rate(known) == pytest.approx(0.6, rel=0.02)


def test_a_pod_is_silent_after_three_polls_without_an_answer() -> None:
    known = fleet([pod(1)])
    known.answered("uid-1", busy(0.3), NOW)
    assert known.observation(KEY, NOW + 7).pods[0].answers
    late = known.observation(KEY, NOW + 7.5).pods[0]
    assert not late.answers
    assert late.now.work_rate < late.last.work_rate == pytest.approx(0.3, rel=0.02)


def test_a_ready_pod_that_was_never_heard_is_missed() -> None:
    known = fleet([pod(1)])
    assert known.observation(KEY, NOW).pods[0].expected
    with pytest.raises(Unseen):
        required_replicas(known.observation(KEY, NOW), known.target(KEY))


@pytest.mark.parametrize("pods", [[pod(1, ready=False)], [pod(1, leaving=True)]])
def test_a_pod_that_is_loading_or_leaving_is_not_missed(pods: list) -> None:  # type: ignore[type-arg]
    assert not fleet(pods).observation(KEY, NOW).pods[0].expected


def test_the_time_to_start_is_the_median_of_what_was_seen() -> None:
    known = fleet([pod(1, startup_seconds=40.0), pod(2, startup_seconds=60.0)])
    assert known.observation(KEY, NOW).reaction_seconds == 40.0 + 2.0 + 15.0


def test_a_pod_that_was_ready_before_has_not_started_again() -> None:
    known = fleet([pod(1, startup_seconds=40.0)])
    known.pod_seen(pod(1, startup_seconds=400.0))
    assert known.observation(KEY, NOW).reaction_seconds == 57.0


def test_an_unknown_start_is_taken_for_half_a_minute_and_a_learnt_one_is_kept() -> None:
    known = fleet([pod(1, startup_seconds=None, ready=False, fresh=True)])
    assert known.observation(KEY, NOW).reaction_seconds == 47.0
    known.pod_seen(pod(1, startup_seconds=100.0))
    assert known.observation(KEY, NOW).reaction_seconds == 117.0
    known.pod_gone(pod(1))
    assert known.observation(KEY, NOW).reaction_seconds == 117.0


REMEMBERED = Capacity(revision="a", rows_per_second=400.0, startup_seconds=90.0)


def test_a_restarted_autoscaler_goes_on_with_what_the_status_remembers() -> None:
    known = fleet()
    known.model_seen(replace(MODEL, capacity=REMEMBERED))
    assert known.observation(KEY, NOW).reaction_seconds == 90.0 + 17.0
    known.pod_seen(pod(1, startup_seconds=7200.0))  # ready again after hours: nobody watched
    assert known.observation(KEY, NOW).reaction_seconds == 90.0 + 17.0
    known.pod_seen(pod(2, startup_seconds=None, ready=False, fresh=True))
    known.pod_seen(pod(2, startup_seconds=130.0))
    assert known.observation(KEY, NOW).reaction_seconds == 130.0 + 17.0


def test_a_pod_that_falls_and_gets_up_has_not_been_watched_starting() -> None:
    known = fleet([pod(1, startup_seconds=700.0)])
    known.pod_seen(pod(1, startup_seconds=None, ready=False))
    known.pod_seen(pod(1, startup_seconds=9000.0))
    assert known.observation(KEY, NOW).reaction_seconds == 600.0 + 17.0


def test_without_a_profile_work_counts_by_what_a_pod_is_remembered_to_do() -> None:
    known = fleet([pod(1)])
    known.model_seen(replace(MODEL, capacity=REMEMBERED))
    batches = busy(10.0, profile_known=False, outstanding=80, backlog_work=5.0)
    known.answered("uid-1", batches, NOW)
    known.pod_seen(pod(2, revision="b"))
    known.answered("uid-2", batches, NOW)
    of = {one.now.batches: one.now for one in known.observation(KEY, NOW).pods}
    # Ten batches of 32 rows a second, where a pod does 400 rows.
    assert of[0.0].work_rate == pytest.approx(0.8, rel=0.02)
    assert of[0.0].backlog == pytest.approx(0.4)
    assert (of[2.5].work_rate, of[2.5].backlog) == (0.0, 0.0)


def test_what_ready_pods_show_is_learnt() -> None:
    known = fleet([pod(1), pod(2, ready=False, startup_seconds=None), pod(3, leaving=True)])
    for number, rate in ((1, 410.0), (2, 10.0), (3, 20.0)):
        told = busy(0.1, rows_per_second=rate, shortest_latency_seconds=0.03)
        known.answered(f"uid-{number}", told, NOW)
    assert known.capacity(KEY) == Capacity(
        revision="a", rows_per_second=410.0, startup_seconds=40.0, shortest_latency_seconds=0.03
    )
    known.pod_gone(pod(1))
    assert known.capacity(KEY).rows_per_second == 410.0  # type: ignore[union-attr]
    known.model_gone(MODEL)
    assert known.capacity(KEY) is None


def test_what_another_replica_saw_of_a_start_holds_here_too() -> None:
    known = fleet([pod(1, startup_seconds=7200.0)])
    known.answered("uid-1", CALM, NOW)
    assert known.observation(KEY, NOW).reaction_seconds == 600.0 + 17.0
    known.model_seen(replace(MODEL, capacity=REMEMBERED))
    assert known.observation(KEY, NOW).reaction_seconds == 90.0 + 17.0
    known.answered("uid-1", CALM, NOW + 10)
    assert known.observation(KEY, NOW).reaction_seconds == 90.0 + 17.0


def test_a_pod_that_never_answers_teaches_how_long_a_start_takes() -> None:
    known = ClusterState(2.0)
    known.ownership.seen(replace(DEPLOYMENT, replicas=1))
    known.ownership.seen(REPLICA_SET)
    known.pod_seen(pod(1, startup_seconds=40.0))
    known.model_seen(MODEL)
    assert known.capacity(KEY) == Capacity(revision="a", startup_seconds=40.0)


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(NotFound, match='"other" not found'):
        fleet().target(ModelKey("team", "other"))


def test_a_deleted_model_leaves_nothing_behind() -> None:
    known = fleet([pod(1)])
    known.answered("uid-1", busy(0.6), NOW)
    known.model_gone(MODEL)
    known.pod_gone(pod(1))
    assert known.counts == (0, 0)
    assert known.observation(KEY, NOW).departed_rate == 0.0


def test_of_a_sidecars_texts_the_last_ones_are_kept() -> None:
    history = History()
    tracemalloc.start()
    try:
        for number in range(10):
            history.record(replace(CALM, settings_hash=f"{number}" * 100_000), NOW + number)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_a_model_that_has_the_name_of_one_that_is_gone_stays() -> None:
    known = fleet([pod(1)])
    known.model_seen(replace(MODEL, uid="another"))
    known.model_gone(MODEL)
    assert known.counts[0] == 1
    known.model_gone(replace(MODEL, uid="another"))
    assert known.counts[0] == 0


def test_of_another_model_by_the_same_name_nothing_is_known() -> None:
    known = fleet([pod(1)])
    assert known.capacity(KEY) is not None
    known.pod_gone(pod(1))
    known.model_seen(replace(MODEL, uid="another"))
    assert known.capacity(KEY) is None


@pytest.mark.slow
def test_very_many_pods_are_asked_more_rarely() -> None:
    known = fleet([pod(number) for number in range(1500)])
    assert (
        known.observation(KEY, NOW).reaction_seconds == 40.0 + 1500 / MOST_POLLS_PER_SECOND + 15.0
    )


def test_an_answer_for_a_pod_that_has_gone_is_dropped() -> None:
    known = fleet([pod(1)])
    known.pod_gone(pod(1))
    known.answered("uid-1", busy(0.6), NOW)
    assert known.address("uid-1") is None
    assert rate(known) == 0.0
