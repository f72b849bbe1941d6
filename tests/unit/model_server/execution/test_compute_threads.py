"""How many threads compute a pass, by how long they waited for a core."""

import logging
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchedmodel_model_server.execution.compute_threads import (
    FIRST_RETRY_SECONDS,
    LOG_PAUSE_SECONDS,
    LONGEST_RETRY_SECONDS,
    PATIENCE_SECONDS,
    WINDOW_SECONDS,
    Choice,
    ComputeThreads,
    Usage,
    idle_seconds,
    next_choice,
    waited_seconds,
)

ALL = Choice(threads=2)


def behind(
    choice: Choice,
    wait_share: float,
    now: float = 0.0,
    available: int = 2,
    free_cores: float = 64.0,
) -> Choice:
    return next_choice(
        choice, available=available, wait_share=wait_share, free_cores=free_cores, now=now
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35])
def test_all_threads_compute_where_they_hardly_wait(share: float) -> None:
    assert behind(ALL, share) == ALL


@pytest.mark.parametrize(
    ("available", "share", "left"), [(2, 0.5, 1), (2, 1.9, 1), (16, 0.9, 15), (16, 3.5, 12)]
)
def test_as_many_threads_stop_as_wait_all_the_time(available: int, share: float, left: int) -> None:
    choice = behind(Choice(threads=available), share, available=available)
    assert choice.threads == left


def test_one_thread_is_left_however_long_it_waits() -> None:
    alone = behind(ALL, 1.0)
    assert behind(alone, 5.0) == alone


def test_all_are_tried_again_ever_more_rarely_while_they_wait() -> None:
    now, choice, waits = 0.0, ALL, []
    for _ in range(8):
        choice = behind(choice, 1.0, now)
        assert choice.threads == 1
        assert behind(choice, 0.0, choice.retry_at - 0.01) == choice
        waits.append(choice.retry_at - now)
        now = choice.retry_at
        choice = behind(choice, 0.0, now)
        assert choice.threads == 2
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, *[LONGEST_RETRY_SECONDS] * 3]


def test_however_long_others_took_the_cores_all_are_tried_soon_once_they_leave() -> None:
    """Behind some minutes beside a busy process it took sixteen seconds."""
    now, choice = 0.0, behind(ALL, 1.0)
    for _ in range(20):
        now = choice.retry_at + PATIENCE_SECONDS
        choice = behind(choice, 0.0, now, free_cores=1.1)
        assert choice.is_trial
        choice = behind(choice, 1.0, now, free_cores=1.1)
    assert choice.retry_at == now + FIRST_RETRY_SECONDS
    assert behind(choice, 0.0, choice.retry_at, free_cores=1.9).threads == 2


def test_a_trial_waits_longer_while_others_take_the_cores() -> None:
    # One process beside two cores: each trial would take as long as thirty passes.
    alone = behind(ALL, 1.0)
    late = alone.retry_at + PATIENCE_SECONDS
    assert behind(alone, 0.0, alone.retry_at, free_cores=1.1) == alone
    assert behind(alone, 0.0, alone.retry_at, free_cores=1.7).threads == 2
    assert behind(alone, 0.0, late - 0.01, free_cores=1.1) == alone
    assert behind(alone, 0.0, late, free_cores=1.1).threads == 2


def test_a_trial_is_judged_soon_and_its_success_forgets_what_was() -> None:
    trial = behind(behind(ALL, 1.0), 0.0, now=FIRST_RETRY_SECONDS)
    assert (trial.threads, trial.retry_at) == (2, math.inf)
    assert trial.window_seconds < ALL.window_seconds
    assert behind(trial, 0.1) == ALL


def test_waits_are_those_of_all_threads_but_the_event_loop(tmp_path: Path) -> None:
    for name, text in (
        (str(os.getpid()), "5 9000000000 1\n"),
        ("1", "5 250000000 1\n"),
        ("2", "5 500000000 1\n"),
        ("3", "no number\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    (tmp_path / "4").mkdir()  # of a thread that has ended
    assert waited_seconds(tmp_path) == 0.75


def test_idle_is_what_the_cores_of_this_process_were(tmp_path: Path) -> None:
    own, ticks = min(os.sched_getaffinity(0)), os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    stat.write_text(
        f"cpu  9 9 9 {90 * ticks} 9 9 9 9 0 0\n"
        f"cpu{own} 9 9 9 {3 * ticks} {ticks} 9 9 9 0 0\n"
        f"cpu4096 9 9 9 {50 * ticks} 0 9 9 9 0 0\nctxt 5\n"
    )
    assert idle_seconds(stat) == 4.0


@pytest.mark.parametrize("text", ["", "cpu0 nothing\n", "cpu0 1 2 3 four 5\n"])
def test_idle_is_0_where_the_kernel_does_not_say_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    assert idle_seconds(tmp_path / "stat") == idle_seconds(tmp_path / "none") == 0.0


class Torch(SimpleNamespace):
    threads = 2

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads


class Machine:
    """Passes of some length, within which threads wait for some share of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.waited = 0.0
        self.torch = Torch()
        monkeypatch.setitem(sys.modules, "torch", self.torch)
        # Both cores compute for this process or are idle.
        self.threads = ComputeThreads(
            lambda: Usage(self.now, self.waited, self.now, self.now), lambda: self.now
        )

    def passes(self, share: float, device: str = "cpu") -> int:
        """A window of passes; how many threads compute the next one."""
        with self.threads.computing(device):
            self.now += WINDOW_SECONDS
            self.waited += share * WINDOW_SECONDS
        return self.torch.threads


def test_torch_computes_with_the_threads_that_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    assert [machine.passes(share) for share in (0.1, 0.9, 0.0, 0.0, 0.0, 0.1)] == [2, 1, 1, 1, 2, 2]


FEWER = "other processes take cores from this one: 1 of 2 threads compute"
ALL_AGAIN = "all 2 threads compute again"


def test_a_machine_that_is_busy_by_turns_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two lines came every 0.75 seconds."""
    caplog.set_level(logging.INFO)
    machine = Machine(monkeypatch)
    while machine.now < 10 * LOG_PAUSE_SECONDS:
        machine.passes(0.5)
        while machine.torch.threads == 1:
            machine.passes(0.0)
        machine.passes(0.1)  # a trial that ends well
    assert caplog.messages[0] == FEWER
    assert 1 <= len(caplog.messages) <= 10


def test_what_is_logged_last_is_what_holds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine(monkeypatch)
    machine.passes(0.9)
    assert caplog.messages == [FEWER], "at once"
    while machine.now < 2 * LOG_PAUSE_SECONDS:
        machine.passes(0.0)
    assert caplog.messages == [FEWER, ALL_AGAIN]


def test_a_trial_that_fails_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine(monkeypatch)
    while machine.now < 5 * LOG_PAUSE_SECONDS:
        machine.passes(0.9 if machine.torch.threads == 2 else 0.0)
    assert caplog.messages == [FEWER]


def test_passes_of_an_accelerator_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.passes(0.9, "cuda") == 2


def test_a_failed_pass_counts_and_its_error_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)

    def fail() -> None:
        with machine.threads.computing("cpu"):
            machine.now += WINDOW_SECONDS
            machine.waited += WINDOW_SECONDS
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert machine.torch.threads == 1


def test_processes_without_torch_need_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with ComputeThreads().computing("cpu"):
        pass
