from signal import SIGKILL

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_cli.run.restarts import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    ONE_INTERRUPT_SECONDS,
    STEADY_SECONDS,
    Decision,
    Ended,
    Interrupt,
    Verdict,
    after_end,
    after_interrupt,
)


def ended(returncode: int = 1, lived: float = 1.0, now: float = 100.0) -> Ended:
    return Ended(name="model", started_at=now - lived, ended_at=now, returncode=returncode)


def pauses(ends: int) -> list[float]:
    found, failures = [], 0
    for _ in range(ends):
        decision = after_end(ended(), failures)
        failures = decision.failures
        found.append(round(decision.start_at - 100.0, 6))
    return found


def test_pauses_double_up_to_the_longest() -> None:
    assert pauses(8) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_long_life_makes_the_next_pause_short_again() -> None:
    decision = after_end(ended(lived=STEADY_SECONDS), failures=9)
    assert decision.start_at == pytest.approx(100.0 + FIRST_PAUSE_SECONDS)
    assert decision.failures == 1


def test_a_life_just_short_of_steady_counts_as_a_failure() -> None:
    decision = after_end(ended(lived=STEADY_SECONDS - 0.1), failures=9)
    assert decision.start_at == pytest.approx(100.0 + LONGEST_PAUSE_SECONDS)


def test_even_a_clean_exit_is_started_again() -> None:
    assert after_end(ended(returncode=0), 0).verdict is Verdict.RESTART


@pytest.mark.parametrize(
    ("returncode", "verdict"), [(3, Verdict.CANNOT_LISTEN), (2, Verdict.WRONG_SETTINGS)]
)
def test_what_would_end_the_same_way_again_is_final(returncode: int, verdict: Verdict) -> None:
    assert after_end(ended(returncode=returncode), 0).verdict is verdict


def test_the_sentence_names_process_signal_and_pause() -> None:
    sentence = after_end(ended(returncode=-SIGKILL), 1).sentence
    assert sentence == "model ended with signal SIGKILL; starting it again in 0.4 s"


def test_the_sentence_names_the_exit_code() -> None:
    assert "exit code 7" in after_end(ended(returncode=7), 0).sentence


def test_a_signal_without_a_name_is_shown_by_number() -> None:
    assert "signal 40" in after_end(ended(returncode=-40), 0).sentence


def test_the_first_interrupt_stops_and_a_later_one_kills() -> None:
    assert after_interrupt(100.0, None) is Interrupt.STOP
    assert after_interrupt(100.0 + ONE_INTERRUPT_SECONDS, 100.0) is Interrupt.KILL


def test_an_interrupt_delivered_twice_is_one() -> None:
    assert after_interrupt(100.0, 100.0) is Interrupt.REPEAT
    assert after_interrupt(100.49, 100.0) is Interrupt.REPEAT


def test_a_port_in_use_comes_with_the_ways_to_choose_another() -> None:
    sentence = after_end(ended(returncode=3), 0).sentence
    assert "--port" in sentence
    assert "PORT=" in sentence


@given(
    returncode=st.integers(min_value=-64, max_value=255),
    failures=st.integers(min_value=0, max_value=10**9),
    lived=st.floats(min_value=0, max_value=1e9),
)
def test_every_pause_is_within_its_bounds(returncode: int, failures: int, lived: float) -> None:
    decision: Decision = after_end(ended(returncode, lived), failures)
    if decision.verdict is Verdict.RESTART:
        pause = decision.start_at - 100.0
        assert FIRST_PAUSE_SECONDS - 1e-9 <= pause <= LONGEST_PAUSE_SECONDS
