from signal import SIGKILL

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_cli.run.supervisor import (
    FAILED,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    STEADY_SECONDS,
    WRONG,
    Decision,
    Supervisor,
    after_end,
)


def ended(returncode: int = 1, *, lived: float = 1.0, failures: int = 0) -> Decision:
    return after_end("model", returncode, lived, failures)


def pauses(ends: int) -> list[float]:
    found, failures = [], 0
    for _ in range(ends):
        decision = ended(failures=failures)
        failures = decision.failures
        found.append(decision.pause_seconds)
    return found


def test_pauses_double_up_to_the_longest() -> None:
    assert pauses(8) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_long_life_makes_the_next_pause_short_again() -> None:
    decision = ended(lived=STEADY_SECONDS, failures=9)
    assert decision.pause_seconds == FIRST_PAUSE_SECONDS
    assert decision.failures == 1


def test_a_life_just_short_of_steady_counts_as_a_failure() -> None:
    decision = ended(lived=STEADY_SECONDS - 0.1, failures=9)
    assert decision.pause_seconds == LONGEST_PAUSE_SECONDS


def test_even_a_clean_exit_is_started_again() -> None:
    assert ended(0).exit_code is None


@pytest.mark.parametrize(("returncode", "exit_code"), [(3, FAILED), (2, WRONG)])
def test_what_would_end_the_same_way_again_is_final(returncode: int, exit_code: int) -> None:
    assert ended(returncode).exit_code == exit_code


def test_the_sentence_names_process_signal_and_pause() -> None:
    sentence = ended(-SIGKILL, failures=1).sentence
    assert sentence == "model ended with signal SIGKILL; starting it again in 0.4 s"


def test_the_sentence_names_the_exit_code() -> None:
    assert "exit code 7" in ended(7).sentence


def test_a_signal_without_a_name_is_shown_by_number() -> None:
    assert "signal 40" in ended(-40).sentence


def test_a_port_in_use_comes_with_the_ways_to_choose_another() -> None:
    sentence = ended(3).sentence
    assert "--port" in sentence
    assert "PORT=" in sentence


@given(
    returncode=st.integers(min_value=-64, max_value=255),
    failures=st.integers(min_value=0, max_value=10**9),
    lived=st.floats(min_value=0, max_value=1e9),
)
def test_every_pause_is_within_its_bounds(returncode: int, failures: int, lived: float) -> None:
    decision = ended(returncode, lived=lived, failures=failures)
    if decision.exit_code is None:
        assert FIRST_PAUSE_SECONDS <= decision.pause_seconds <= LONGEST_PAUSE_SECONDS


def test_a_run_that_stops_is_no_start_any_more() -> None:
    """Behind \"stopping model\" stood \"loading the model, for 38 s\"."""
    supervisor = Supervisor((), show=lambda *_: None, tell=lambda _: None, admin=lambda: None)
    assert not supervisor.is_stopping
    supervisor.stop(WRONG)
    assert supervisor.is_stopping
