"""The common report of the benchmarks."""

import json
import math
from pathlib import Path

import pytest

from bench_report import (
    Figure,
    at_least,
    at_most,
    median_of,
    new_parser,
    of_rounds,
    print_table,
    report,
    write_json,
)

SHARE = at_least("share of the limit", 98.25, "%", 97)
ADDED = at_most("added p50", 1.5, "ms", 1)
RATE = Figure(name="bare server", value=12345.6, unit="1/s")


def test_a_bound_is_reached_when_the_value_equals_it() -> None:
    assert at_least("share", 97.0, "%", 97).holds is True
    assert at_most("added", 1.0, "ms", 1).holds is True


def test_a_value_beyond_its_bound_does_not_hold() -> None:
    assert at_least("share", 96.9, "%", 97).holds is False
    assert at_most("added", 1.01, "ms", 1).holds is False


def test_what_was_not_measured_reaches_no_goal() -> None:
    assert at_least("share", math.nan, "%", 97).holds is False
    assert at_most("added", math.nan, "ms", 1).holds is False


@pytest.mark.parametrize(
    "values", [[math.nan, 5.0, 6.0], [5.0, math.nan, 6.0], [5.0, 6.0, math.nan]]
)
def test_the_median_of_rounds_hides_none_that_measured_nothing(values: list[float]) -> None:
    assert math.isnan(median_of(values))
    assert median_of([7.0, 5.0, 6.0]) == 6.0


def test_a_goal_without_a_verdict_is_refused() -> None:
    with pytest.raises(ValueError, match="share: goal and holds are given together"):
        Figure(name="share", value=1.0, unit="%", goal="at least 97")


def test_the_table_has_one_aligned_line_per_figure(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([SHARE, ADDED, RATE])

    assert capsys.readouterr().out.splitlines() == [
        "figure               value  unit  goal         holds",
        "share of the limit   98.25  %     at least 97  yes",
        "added p50            1.500  ms    at most 1    NO",
        "bare server         12,346  1/s",
    ]


def test_rounds_are_shown_from_the_lowest_to_the_highest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spread = of_rounds(lambda value: at_most("added", value, "ms", 1), [0.5, 0.9, 0.25])
    assert spread.value == 0.5

    print_table([spread, RATE])

    assert capsys.readouterr().out.splitlines() == [
        "figure        value  unit  goal       holds  rounds",
        "added        0.5000  ms    at most 1  yes    0.2500 to 0.9000",
        "bare server  12,346  1/s",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.00123456, "0.001235"),
        (-2.5, "-2.500"),
        (999.96, "1,000.0"),
        (1e7, "10,000,000"),
    ],
)
def test_values_are_shown_with_four_digits(
    value: float, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table([Figure(name="x", value=value, unit="s")])

    assert capsys.readouterr().out.splitlines()[1].split()[1] == shown


def test_a_missed_goal_is_reported_and_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = new_parser("Of this test.").parse_args(["--quick", f"--json={tmp_path}/figures"])

    assert options.quick
    assert report([ADDED], options.json) == 0
    assert capsys.readouterr().out.endswith("NO\n")
    assert [figure["holds"] for figure in json.loads((tmp_path / "figures").read_text())] == [False]


def test_without_a_file_the_table_is_all(capsys: pytest.CaptureFixture[str]) -> None:
    options = new_parser("Of this test.").parse_args([])

    assert not options.quick
    assert report([RATE], options.json) == 0
    assert "bare server" in capsys.readouterr().out


def test_json_carries_every_field_and_null_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    unmeasured = Figure(name="p99", value=math.nan, unit="ms")

    write_json(path, [SHARE, unmeasured])

    assert json.loads(path.read_text()) == [
        {
            "name": "share of the limit",
            "value": 98.25,
            "unit": "%",
            "goal": "at least 97",
            "holds": True,
        },
        {"name": "p99", "value": None, "unit": "ms", "goal": None, "holds": None},
    ]
    assert list(tmp_path.iterdir()) == [path]
