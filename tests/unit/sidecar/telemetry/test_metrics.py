"""What `/metrics` says of a policy that adapts, and of books that always balance."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.policy import Signals
from batchedmodel_sidecar.telemetry.ledger import Durations, Ledger
from batchedmodel_sidecar.telemetry.metrics import DurationsCollector, LedgerCollector

SIGNALS = Signals(
    effective_batch_size=7.5,
    effective_wait_seconds=0.002,
    predicted_lateness_seconds=0.0,
    target_feasible=False,
    sustainable_share=0.5,
    sustainable_rate=812.5,
    smallest_feasible_target_seconds=0.012,
)


def scraped(ledger: Ledger, signals: Signals, now: float = 0.0) -> dict[str, float]:
    """Every sample by its name, with the value of its label behind a dot."""
    registry = CollectorRegistry()
    registry.register(
        LedgerCollector(
            ledger=ledger,
            settings_hash=lambda: "0",
            settings_errors=lambda: 0,
            model_is_ready=lambda: True,
            circuit_is_open=lambda: False,
            oldest_age=lambda: 0.5,
            signals=lambda: signals,
            clock=lambda: now,
        )
    )
    return dict(_samples(registry))


def _samples(registry: CollectorRegistry) -> Iterator[tuple[str, float]]:
    for family in registry.collect():
        for sample in family.samples:
            name = sample.name.removeprefix("batchedmodel_")
            yield ".".join([name, *sample.labels.values()]), sample.value


def test_the_adaptive_behaviour_is_exported() -> None:
    found = scraped(Ledger(), SIGNALS)
    assert found["effective_batch_size"] == 7.5
    assert found["effective_wait_seconds"] == 0.002
    assert found["predicted_lateness_seconds"] == 0.0
    assert found["target_feasible"] == 0
    assert found["sustainable_rows_per_second"] == 812.5
    assert found["smallest_feasible_target_seconds"] == 0.012


def test_what_nobody_knows_has_no_sample() -> None:
    unknown = replace(
        SIGNALS, target_feasible=None, sustainable_rate=None, smallest_feasible_target_seconds=None
    )
    found = scraped(Ledger(), unknown)
    names = ("target_feasible", "sustainable_rows_per_second", "smallest_feasible_target_seconds")
    assert not [name for name in names if name in found]
    assert found["effective_batch_size"] == 7.5


def test_every_end_of_a_call_has_a_series_and_they_add_up() -> None:
    ledger = Ledger()
    for outcome in Outcome:
        ledger.accept(2, 1.0, 0.0)
        ledger.settle(outcome, 2, 1.0, 0.0, waiting=2)
    ledger.accept(3, 1.0, 0.0)
    ledger.pass_on()
    for reason in Rejection:
        ledger.rejected[reason] += 1
    found = scraped(ledger, SIGNALS)
    settled = [found[f"requests_settled_total.{outcome}"] for outcome in Outcome]
    rejected = [found[f"requests_rejected_total.{reason}"] for reason in Rejection]
    assert set(settled) == set(rejected) == {1.0}
    waiting, in_flight = found["queue_requests"], found["inflight_requests"]
    assert (waiting, in_flight) == (1, 1)
    assert found["requests_accepted_total"] == len(Outcome) + 2
    assert found["requests_offered_total"] == len(Outcome) + 2 + len(Rejection)
    assert found["queue_length"] == 3


def test_answers_after_their_target_are_counted_beside_how_calls_ended() -> None:
    assert scraped(Ledger(), SIGNALS)["requests_late_total"] == 0
    ledger = Ledger(late=3)
    assert scraped(ledger, SIGNALS)["requests_late_total"] == 3


def test_the_integral_of_a_level_gives_its_exact_average_whatever_the_scrapes_miss() -> None:
    ledger = Ledger()
    ledger.accept(4, 1.0, 10.0)
    ledger.leave(4, 4)
    ledger.batch_leaves(ReleaseReason.IDLE, 1, 11.0)
    ledger.batch_ends(1, 13.0)
    ledger.settle(Outcome.CANCELLED, 4, 1.0, 14.0, waiting=3)
    found = scraped(ledger, SIGNALS, now=100.0)
    assert found["queue_item_seconds_total"] == 4 * 1.0 + 3 * 3.0
    assert found["executing_item_seconds_total"] == 2.0
    assert (found["queue_length"], found["executing_items"]) == (0, 0)


def test_a_histogram_counts_what_is_at_most_its_bound() -> None:
    registry = CollectorRegistry()
    durations = Durations()
    registry.register(DurationsCollector(durations))
    for seconds in (0.0004, 0.001, 0.0011, 7.5, 31.0):
        durations.queue.observe(seconds)
    durations.batch_size.observe(32)
    found = dict(_samples(registry))
    assert found["queue_duration_seconds_bucket.0.001"] == 2
    assert found["queue_duration_seconds_bucket.0.0025"] == 3
    assert found["queue_duration_seconds_bucket.10.0"] == 4
    assert found["queue_duration_seconds_bucket.+Inf"] == found["queue_duration_seconds_count"] == 5
    assert found["queue_duration_seconds_sum"] == pytest.approx(38.5025)
    assert found["batch_size_bucket.16.0"] == 0
    assert found["batch_size_bucket.32.0"] == 1
    assert found["request_duration_seconds_count"] == 0
