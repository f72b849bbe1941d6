"""A start is told by its phases."""

import time
from pathlib import Path

import pytest

from batchedmodel_model_server.lifecycle.loading import PROCESS, StartUp, process_age
from support.model_server_handlers import Clock


def test_phases_come_in_their_order_behind_that_of_the_process() -> None:
    clock = Clock()
    start = StartUp(0.5, clock.read)
    with start.phase("load"):
        clock.sleep(2)
    clock.sleep(100)
    with start.phase("warm-up"):
        clock.sleep(1)
    assert start.seconds == ((PROCESS, 0.5), ("load", 2.0), ("warm-up", 1.0))


def test_a_phase_that_comes_again_is_added_up() -> None:
    clock = Clock()
    start = StartUp(clock=clock.read)
    for name in ("imports", "fetch", "imports"):
        with start.phase(name):
            clock.sleep(1)
    assert start.seconds == ((PROCESS, 0.0), ("imports", 2.0), ("fetch", 1.0))


def test_a_phase_that_fails_is_counted() -> None:
    clock = Clock()
    start = StartUp(clock=clock.read)

    def load() -> None:
        with start.phase("load"):
            clock.sleep(3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        load()
    assert start.seconds[-1] == ("load", 3.0)


def test_a_start_reads_as_its_sum_and_its_parts() -> None:
    clock = Clock()
    start = StartUp(0.25, clock.read)
    with start.phase("load"):
        clock.sleep(1.5)
    assert str(start) == "1.75 s: process 0.25, load 1.50"


def test_the_kernel_says_how_old_the_process_is() -> None:
    # Since the boot no process of now is older than the machine.
    assert 0 < process_age() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_name_of_spaces_and_parentheses_does_not_mislead(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(f"7 (a) S (b c) S {'9 ' * 18}0 8 8")
    age = process_age(stat)
    assert age == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5)


@pytest.mark.parametrize("content", ["", "7 (name) S 1 2", f"7 (name) {'x ' * 40}"])
def test_where_the_kernel_does_not_say_the_age_is_nothing(tmp_path: Path, content: str) -> None:
    stat = tmp_path / "stat"
    stat.write_text(content)
    assert process_age(stat) == 0.0
    assert process_age(tmp_path / "none") == 0.0
