"""What the autoscaler is told of generated text."""

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_sidecar.telemetry.generation_counts import GenerationWork
from batchedmodel_sidecar.telemetry.ledger import Ledger


def told(work: GenerationWork, now: float) -> SidecarStats:
    return work.stats(
        BatchSettings(), now, backlog=2.0, at_once=64, model_ready=True, draining=False
    )


def test_work_is_told_in_seconds_of_the_device_by_second() -> None:
    work = GenerationWork(Ledger(), 100.0)
    work.add(0.5, 100.2)
    work.add(0.25, 100.8)
    work.add(0.1, 101.1)
    stats = told(work, 101.5)
    assert stats.profile_known
    assert stats.offered_work[-2:] == (0.75, 0.1)
    assert (stats.backlog_work, stats.max_batch_size) == (2.0, 64)


def test_a_second_counts_as_its_cache_where_more_of_that_was_used() -> None:
    work = GenerationWork(Ledger(), 100.0)
    work.add(0.5, 100.2)
    work.cache_used(0.9, 100.4)
    work.cache_used(0.2, 101.1)
    work.add(0.3, 101.2)
    assert told(work, 101.5).offered_work[-2:] == (0.9, 0.3)


def test_what_was_refused_unread_counts_as_an_average_request() -> None:
    work = GenerationWork(Ledger(), 100.0)
    assert not work.any
    work.add(0.5, 100.0)
    work.add_unseen(100.1)
    assert work.any
    assert told(work, 100.5).offered_work[-1] == 1.0
