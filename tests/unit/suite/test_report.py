"""The table at the end of a run."""

from pathlib import Path

import pytest

from suite.records import Outcome, Record, read, write
from suite.report import SLOWEST, table


def _record(test: str, seconds: float, **more: object) -> Record:
    values = {"outcome": Outcome.PASSED, "cluster_seconds": 0.0, **more}
    return Record(test=test, seconds=seconds, **values)  # type: ignore[arg-type]


def _table(*records: Record, **budgets: float) -> str:
    named = {f"tests/{name}": minutes for name, minutes in budgets.items()}
    return table(records, named, wall_seconds=90.0, load=1.5)


def test_minutes_are_added_up_per_folder() -> None:
    said = _table(
        _record("tests/unit/http/test_door.py::test_a", 60),
        _record("tests/unit/cli/test_pod.py::test_b", 30, cluster_seconds=6.0),
        _record("tests/integration/test_books.py::test_c", 12),
        unit=2,
        integration=1,
    )
    assert "    2      1.5     2.0     0.1  tests/unit" in said
    assert "    1      0.2     1.0     0.0  tests/integration" in said
    assert "1.5 minutes of wall time, 1.7 minutes of tests, 0.1 of them waiting" in said
    assert "load average 1.5" in said
    assert "warning" not in said


def test_a_folder_that_passes_its_budget_is_warned_of() -> None:
    said = _table(_record("tests/unit/test_a.py::test_a", 121), unit=2)
    assert "warning: tests/unit took 2.0 minutes, its budget is 2.0" in said


def test_a_folder_without_a_budget_is_warned_of() -> None:
    assert "warning: tests/unit has no budget" in _table(
        _record("tests/unit/test_a.py::t", 1), integration=1
    )


def test_where_no_budgets_are_held_nobody_is_warned() -> None:
    assert "warning" not in _table(_record("tests/unit/test_a.py::t", 1000))


def test_the_slowest_are_listed_and_no_others() -> None:
    said = _table(*(_record(f"tests/unit/t.py::test_{n:03}", n) for n in range(SLOWEST + 1)))
    assert f"   {SLOWEST}.0 (0.0)  tests/unit/t.py::test_{SLOWEST:03}" in said
    assert "test_000" not in said
    assert said.index(f"test_{SLOWEST:03}") < said.index("test_001")


def test_what_failed_is_listed_again_at_the_end() -> None:
    failed = _record("tests/unit/t.py::test_a", 1, outcome=Outcome.FAILED, why="E assert\nt.py:7")
    said = _table(failed, unit=1)
    assert "failed: tests/unit/t.py::test_a\n  E assert\n  t.py:7\n" in said


@pytest.mark.parametrize(
    ("why", "said"),
    [
        pytest.param("  def t()\nE   assert 1 == 2\nE   where\nt.py:7", "assert 1 == 2", id="E"),
        pytest.param("worker gw0 crashed\nno more", "no more", id="the last line"),
        pytest.param("", "", id="nothing"),
        pytest.param("E   " + "x" * 500, "x" * 200, id="bounded"),
    ],
)
def test_of_each_failure_the_very_end_has_a_line(why: str, said: str) -> None:
    first = _record("tests/unit/t.py::test_a", 1, outcome=Outcome.FAILED, why=why)
    other = _record("tests/unit/t.py::test_b", 1, outcome=Outcome.FAILED, why="E   other")
    *_, line, last = _table(first, other, unit=1).splitlines()
    assert last == "failed: tests/unit/t.py::test_b: other"
    assert line.startswith(f"failed: tests/unit/t.py::test_a: {said}")
    assert len(line) <= 240


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    records = [_record("tests/unit/t.py::test_a[x y]", 0.25, cluster_seconds=0.125)]
    write(tmp_path / "records", records)
    assert read(tmp_path / "records") == records


def test_a_process_that_died_left_no_records(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == []
