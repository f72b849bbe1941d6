"""When the server gets no work, and when the sidecar itself must be restarted."""

import math

import pytest

from batchedmodel_sidecar.batching.batcher import DecisionWatchdog
from batchedmodel_sidecar.batching.health import CircuitBreaker
from batchedmodel_sidecar.calls import RawReply, RowFailure
from batchedmodel_sidecar.errors import Busy, Lost, Unserved

SEVERAL = ("a", "b")


def fail(
    circuit: CircuitBreaker, now: float = 0.0, *, since: float | None = None, callers: str = "ab"
) -> None:
    """A batch that had just left, or `since` then, has no answer."""
    error = Unserved("broken", status=502)
    circuit.unserved(error, now, since=now if since is None else since, callers=callers)


def failed(times: int, now: float = 0.0) -> CircuitBreaker:
    circuit = CircuitBreaker()
    for _ in range(times):
        fail(circuit, now)
    return circuit


def refusal(calls: int, status: int = 500) -> RawReply:
    """An upstream server's answer to so many calls of a row each, all of them refused."""
    return RawReply(
        compute_seconds=0.0,
        tokens=calls,
        padded_tokens=calls,
        names=(),
        answers=(RowFailure(status=status, message="no"),) * calls,
        fault=None,
        refused=calls if status >= 500 else 0,
        passes=2,
    )


def test_a_few_failures_change_nothing() -> None:
    circuit = failed(4)
    assert circuit.closed_to_callers(0.0) is None
    assert circuit.depth(2, 0.0) == 2
    assert circuit.changes_at(0.0) == math.inf


def test_after_five_failures_in_a_row_nothing_is_sent_for_a_second_and_then_one_batch() -> None:
    circuit = failed(5)
    assert "none of the last batches" in (circuit.closed_to_callers(0.9) or "")
    assert circuit.closed_to_callers(1.0) is None, "somebody must come to be tried"
    assert circuit.depth(2, 0.999) == 0
    assert circuit.changes_at(0.5) == 1.0
    assert circuit.depth(2, 1.0) == 1
    assert circuit.changes_at(1.0) == math.inf
    assert circuit.depth(0, 1.0) == 0, "a server that is away holds none, whatever is tried"


def test_the_pause_doubles_with_each_failed_trial_up_to_half_a_minute() -> None:
    circuit, now = failed(5, now=10.0), 10.0
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        assert circuit.changes_at(now) == now + pause
        now += pause
        fail(circuit, now)


def test_batches_that_were_under_way_make_no_pause_longer() -> None:
    assert failed(64, now=10.0).changes_at(10.0) == 11.0


def test_a_server_that_started_anew_is_tried_at_once() -> None:
    circuit = failed(6)
    circuit.back()
    assert circuit.depth(2, 0.0) == 0, "the same server has only been asked again who it is"
    circuit.unserved(Lost("gone"), 0.0, since=0.0, callers=SEVERAL)
    circuit.back()
    assert circuit.closed_to_callers(0.0) is None
    assert circuit.depth(2, 0.0) == 1


def test_what_ends_beside_a_death_does_not_hide_it() -> None:
    circuit = failed(7)
    circuit.unserved(Lost("gone"), 4.0, since=4.0, callers=SEVERAL)
    circuit.unserved(Busy("nobody listens"), 4.0, since=4.0, callers=SEVERAL)
    circuit.back()
    assert circuit.depth(2, 4.0) == 1, "it has started anew"
    fail(circuit, 5.0)
    circuit.back()
    assert circuit.depth(2, 5.0) == 0, "that one was still there"


def test_a_failure_of_one_that_is_there_ends_the_memory_of_a_death() -> None:
    """A worker died and nobody said that the server is back: it is the same one that fails."""
    circuit = CircuitBreaker()
    circuit.unserved(Lost("gone"), 0.0, since=0.0, callers=SEVERAL)
    for now in (1.0, 1.1, 1.2, 1.3):
        fail(circuit, now)
    assert circuit.depth(2, 1.4) == 0
    circuit.back()
    assert circuit.depth(2, 1.4) == 0, "its readiness came and went, and nothing has started anew"


def test_after_a_death_nothing_is_sent_until_the_link_must_have_heard_of_it() -> None:
    circuit = CircuitBreaker()
    circuit.unserved(Lost("gone"), 0.0, since=0.0, callers=SEVERAL)
    assert circuit.depth(2, 0.1) == 0
    assert circuit.depth(2, 0.2) == 2


def test_batches_that_a_server_takes_with_it_count_as_one() -> None:
    circuit = CircuitBreaker()
    for now in (1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4):
        circuit.unserved(Lost("gone"), now, since=0.5, callers=SEVERAL)
    assert circuit.closed_to_callers(1.4) is None
    assert circuit.depth(8, 1.6) == 8


def test_what_failed_side_by_side_counts_as_one() -> None:
    circuit = CircuitBreaker()
    for since in (0.0, 1.0, 2.0, 3.0):
        for worker in range(8):
            fail(circuit, since + 1.0, since=since + worker / 100)
    assert circuit.closed_to_callers(4.0) is None
    fail(circuit, 5.0, since=4.0)
    assert circuit.closed_to_callers(5.0) is not None


def test_a_trial_does_not_wait_for_batches_that_may_hang() -> None:
    circuit = failed(5)
    assert circuit.depth(4, 1.0, slow=2) == 3
    assert circuit.depth(2, 1.0, slow=2) == 2


@pytest.mark.parametrize(("calls", "batches"), [(1, 20), (2, 10), (3, 7), (4, 5), (32, 5)])
def test_an_upstream_server_that_answers_no_call_gets_nothing_after_twenty_or_five_batches(
    calls: int, batches: int
) -> None:
    circuit = CircuitBreaker()
    for _ in range(batches - 1):
        circuit.replied(refusal(calls), 0.0, since=0.0, callers=SEVERAL)
    assert circuit.changes_at(0.0) == math.inf
    circuit.replied(refusal(calls), 0.0, since=0.0, callers=SEVERAL)
    assert circuit.changes_at(0.0) == 1.0
    circuit.replied(refusal(calls), 1.0, since=1.0, callers=SEVERAL)
    assert circuit.closed_to_callers(1.9) is not None, "a trial that came to nothing"


def test_what_callers_did_wrong_neither_opens_the_circuit_nor_closes_it() -> None:
    circuit = CircuitBreaker()
    for _ in range(50):
        circuit.replied(refusal(8, status=422), 0.0, since=0.0, callers=SEVERAL)
    assert circuit.changes_at(0.0) == math.inf
    circuit = failed(4)
    circuit.replied(refusal(1, status=422), 0.0, since=0.0, callers=SEVERAL)
    fail(circuit)
    assert circuit.changes_at(0.0) == 1.0


def test_one_success_closes_the_circuit() -> None:
    circuit = failed(9)
    circuit.succeeded(1.0)
    fail(circuit, 1.0)
    assert circuit.closed_to_callers(1.0) is None


def test_what_is_answered_late_during_a_pause_spares_nobody_the_trial() -> None:
    circuit = failed(5)
    circuit.succeeded(0.5)
    assert circuit.closed_to_callers(0.9) is not None
    assert circuit.depth(4, 1.0) == 1


def test_what_fails_while_the_server_rests_by_request_counts() -> None:
    """Or one worker that asks for rest would hide that the others are broken."""
    circuit = CircuitBreaker()
    for now in range(5):
        circuit.rest(now, 2.0)
        fail(circuit, now + 0.5)
    assert circuit.closed_to_callers(4.5) is not None


def test_what_is_answered_while_the_server_rests_by_request_counts() -> None:
    circuit = failed(4)
    circuit.rest(0.0, 1.0)
    circuit.succeeded(0.5)
    fail(circuit, 1.0)
    assert circuit.closed_to_callers(1.0) is None


def test_a_server_that_asks_for_rest_gets_it_within_bounds_and_counts_as_sound() -> None:
    circuit = CircuitBreaker()
    circuit.rest(0.0, 2.0)
    assert (circuit.depth(2, 1.9), circuit.depth(2, 2.0)) == (0, 2)
    assert circuit.closed_to_callers(1.0) is None
    circuit.rest(0.0, 3600.0)
    assert circuit.changes_at(0.0) == 5.0
    other = CircuitBreaker()
    other.rest(0.0, 0.0)
    assert other.changes_at(0.0) == 0.05


def test_three_failed_decisions_in_a_row_are_an_ailment_and_a_good_one_is_its_cure() -> None:
    watchdog = DecisionWatchdog()
    assert watchdog.stumbled(0.0) == 1.0
    watchdog.stumbled(1.0)
    assert watchdog.ailment(1.0) is None
    watchdog.stumbled(2.0)
    assert watchdog.ailment(2.0) == "the last 3 decisions failed"
    watchdog.decided(math.inf)
    assert watchdog.ailment(1e9) is None, "nothing is due, so nothing is late"


def test_a_decision_that_does_not_come_is_an_ailment() -> None:
    watchdog = DecisionWatchdog()
    watchdog.decided(10.0)
    assert watchdog.ailment(15.0) is None
    assert watchdog.ailment(15.1) == "a decision is 5 s late"


def test_what_one_caller_meets_is_no_evidence_against_the_server() -> None:
    circuit = CircuitBreaker()
    for _ in range(60):
        fail(circuit, callers="a")
        circuit.replied(refusal(1), 0.0, since=0.0, callers="a")
    fail(circuit, callers="b")
    assert circuit.closed_to_callers(0.0) is None
    assert circuit.depth(2, 0.0) == 2
    fail(circuit, callers="b")
    fail(circuit, callers="c")
    assert circuit.closed_to_callers(0.0) is not None, "several meet it"
