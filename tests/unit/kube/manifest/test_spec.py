"""Defaults that depend on other fields."""

from batchedmodel_kube.manifest.spec import (
    drain_timeout_seconds,
    target_concurrency,
    target_queue_length,
    target_queue_time_milliseconds,
    target_utilization_percent,
)


def test_what_is_given_holds() -> None:
    assert drain_timeout_seconds(7, request_timeout_seconds=30) == 7
    assert target_utilization_percent(65) == 65
    assert target_queue_length(7, max_batch_size=32) == 7
    assert target_concurrency(7, max_batch_size=32, max_concurrent_batches=4) == 7
    assert target_queue_time_milliseconds(7, target_latency_milliseconds=100) == 7


def test_what_is_absent_follows_the_other_fields() -> None:
    assert drain_timeout_seconds(None, request_timeout_seconds=30) == 35
    assert target_utilization_percent(None) == 80
    assert target_queue_length(None, max_batch_size=16) == 16
    assert target_concurrency(None, max_batch_size=16, max_concurrent_batches=1) == 16
    assert target_concurrency(None, max_batch_size=16, max_concurrent_batches=4) == 64
    assert target_queue_time_milliseconds(None, target_latency_milliseconds=None) == 500
    assert target_queue_time_milliseconds(None, target_latency_milliseconds=101) == 50
    assert target_queue_time_milliseconds(None, target_latency_milliseconds=1) == 1
