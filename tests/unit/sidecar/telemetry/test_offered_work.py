"""What the autoscaler is told of a sidecar."""

import json
from dataclasses import replace

import pytest

from batchedmodel_autoscaler.polling.stats_document import stats_from_mapping
from batchedmodel_contract.inference.profile import Profile, ProfileExtent
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_sidecar.telemetry.ledger import Ledger, OfferedWork, WorkMeter
from support.scheduling import row_profile

SETTINGS = BatchSettings(max_batch_size=8, target_seconds=0.095)
PROFILE = row_profile(0.010, 0.005, range(1, 9))


def test_how_long_rows_waited_is_told_for_all_of_them_together() -> None:
    ledger = Ledger()
    offered = OfferedWork(ledger, 0.0)
    ledger.accept(3, 0.1, 1.0)
    ledger.batch_leaves(ReleaseReason.FULL, 2, 3.0)
    policy = new_policy(SETTINGS, None)
    stats = offered.stats(SETTINGS, 4.0, policy, model_ready=True, draining=False)
    assert (stats.waited_row_seconds, stats.released_rows) == (2 * 2 + 3, 2)


def test_what_a_pod_can_do_and_how_fast_one_row_is() -> None:
    stats = told(SETTINGS, PROFILE)
    assert stats.rows_per_second == pytest.approx(7 / 0.045, rel=0.05)
    assert stats.shortest_latency_seconds == pytest.approx(0.015, rel=0.2)
    hopeless = told(replace(SETTINGS, target_seconds=0.001), PROFILE)
    assert hopeless.rows_per_second is None
    assert hopeless.shortest_latency_seconds == stats.shortest_latency_seconds


def told(settings: BatchSettings, profile: Profile | None) -> SidecarStats:
    offered = OfferedWork(Ledger(), 0.0)
    offered.add(0.25, 1, 1.0)
    policy = new_policy(settings, profile)
    return offered.stats(settings, 2.0, policy, model_ready=True, draining=False)


def test_the_share_of_full_batches_that_the_target_leaves_stands_beside_the_work() -> None:
    stats = told(SETTINGS, PROFILE)
    assert stats.profile_known
    assert stats.sustainable_share == pytest.approx((7 / 0.045) / (8 / 0.050))
    assert sum(stats.offered_work) == 0.25


def test_without_a_target_full_batches_are_what_a_pod_can_do() -> None:
    assert told(replace(SETTINGS, target_seconds=None), PROFILE).sustainable_share == 1.0


def test_without_a_profile_neither_is_known() -> None:
    stats = told(SETTINGS, None)
    assert (stats.profile_known, stats.sustainable_share) == (False, None)


def test_by_a_partial_profile_nothing_is_told_that_a_pod_can_do() -> None:
    """Two points made a capacity, which the operator wrote down, and the HPA went by it."""
    stats = told(SETTINGS, replace(PROFILE, partial=True))
    assert stats.profile is ProfileExtent.PARTIAL
    assert not stats.profile_known
    assert stats.sustainable_share is stats.rows_per_second is None
    assert stats.shortest_latency_seconds is None
    assert stats_from_mapping(json.loads(json.dumps(stats.to_mapping()))) == stats


def test_work_lies_in_the_second_in_which_it_came() -> None:
    meter = WorkMeter(100.0)
    meter.add(1.0, 1, 100.2)
    meter.add(2.0, 1, 100.9)
    meter.add(4.0, 1, 102.0)
    assert meter.buckets(102.5)[-3:] == (3.0, 0.0, 4.0)


def test_a_minute_later_nothing_is_left_but_the_total() -> None:
    meter = WorkMeter(0.0)
    meter.add(1.0, 1, 0.5)
    assert sum(meter.buckets(59.9)) == 1.0
    assert sum(meter.buckets(60.0)) == 0.0
    assert sum(meter.buckets(1e6)) == 0.0
    assert meter.total == 1.0


def test_the_oldest_second_comes_first() -> None:
    meter = WorkMeter(0.0)
    for second in range(90):
        meter.add(float(second), 1, second + 0.5)
    assert meter.buckets(89.9) == tuple(float(second) for second in range(30, 90))
    assert len(meter.buckets(89.9)) == BUCKETS


def test_a_request_refused_unread_counts_as_an_average_one() -> None:
    meter = WorkMeter(0.0)
    meter.add_unseen(1, 0.1)
    assert meter.total == 0.0, "nothing is known of the requests yet"
    meter.add(1.0, 1, 0.2)
    meter.add(3.0, 1, 0.3)
    meter.add_unseen(1, 0.4)
    assert meter.total == 6.0


def test_rows_that_were_counted_and_not_read_count_as_average_ones() -> None:
    meter = WorkMeter(0.0)
    meter.add(6.0, 3, 0.2)
    meter.add_unseen(100, 0.4)
    assert meter.total == 206.0
    meter.add_unseen(1, 0.5)
    assert meter.total == 309.0, "of how many rows it was is not known: as the mean request"
