"""What the autoscaler is told of generated text."""

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts
from batchedmodel_sidecar.telemetry.ledger import Ledger


def told(counts: GenerationCounts, now: float) -> SidecarStats:
    return counts.texts_stats(
        BatchSettings(), now, backlog=2.0, at_once=64, model_ready=True, draining=False
    )


def test_work_is_told_in_seconds_of_the_device_by_second() -> None:
    counts = GenerationCounts(Ledger(), 100.0)
    counts.asked(0.5, 100.2)
    counts.asked(0.25, 100.8)
    counts.asked(0.1, 101.1)
    stats = told(counts, 101.5)
    assert stats.profile_known
    assert stats.offered_work[-2:] == (0.75, 0.1)
    assert (stats.backlog_work, stats.max_batch_size) == (2.0, 64)


def test_a_second_counts_as_its_cache_where_more_of_that_was_used() -> None:
    counts = GenerationCounts(Ledger(), 100.0)
    counts.asked(0.5, 100.2)
    counts.cache_used(0.9, 100.4)
    counts.cache_used(0.2, 101.1)
    counts.asked(0.3, 101.2)
    assert told(counts, 101.5).offered_work[-2:] == (0.9, 0.3)


def test_what_was_refused_unread_counts_as_an_average_request() -> None:
    counts = GenerationCounts(Ledger(), 100.0)
    assert not counts.any
    counts.asked(0.5, 100.0)
    counts.refused_unread(100.1)
    assert counts.any
    assert told(counts, 100.5).offered_work[-1] == 1.0
