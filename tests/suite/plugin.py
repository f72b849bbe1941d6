"""The plugin that every run of pytest loads: which tests are wanted, and what became of them."""

from collections.abc import Generator
from pathlib import Path

import pytest

from cluster.waiting import waited
from suite.records import Outcome, Record, write
from support.examples import examples

_CLUSTER_SECONDS = "cluster_seconds"
_NIGHTLY = "nightly"
_RECORDER = "suite-recorder"
_SHOWN_LETTERS = 3_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options of the suite."""
    group = parser.getgroup("suite")
    group.addoption("--record", type=Path, help="file to write what became of each test to")
    group.addoption(
        "--nightly",
        choices=("all", "none"),
        default="all",
        help="all: nightly tests are tests as others are (the default); none: they are left out",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Fewer examples by day; records by the process that hears of every test, no worker's."""
    if config.getoption("nightly") == "none":
        examples.daily()
    path = config.getoption("record")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), _RECORDER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out nightly tests where they are not wanted."""
    if config.getoption("nightly") == "all":
        return
    left_out = [item for item in items if item.get_closest_marker("nightly") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let each report say how long its phase waited for a cluster, and what its test is."""
    report = yield
    report.user_properties.append((_CLUSTER_SECONDS, waited.taken()))
    report.user_properties.append((_NIGHTLY, item.get_closest_marker("nightly") is not None))
    return report


class Recorder:
    """Adds up the phases of each test; the order in which they come does not matter."""

    def __init__(self, path: Path) -> None:
        """`path`: where the records go when the session ends."""
        self._path = path
        self._records: dict[str, Record] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test."""
        known = self._records.get(report.nodeid)
        outcomes = list(Outcome)
        outcome = Outcome(report.outcome)
        if known is not None:
            outcome = max(outcome, known.outcome, key=outcomes.index)
        waited_for = sum(
            float(str(value)) for name, value in report.user_properties if name == _CLUSTER_SECONDS
        )
        self._records[report.nodeid] = Record(
            test=report.nodeid,
            outcome=outcome,
            seconds=report.duration + (known.seconds if known else 0.0),
            cluster_seconds=waited_for + (known.cluster_seconds if known else 0.0),
            nightly=(_NIGHTLY, True) in report.user_properties,
            why=_why(report) or (known.why if known else ""),
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file of tests that cannot be read."""
        if report.failed:
            self._records[report.nodeid] = Record(
                test=report.nodeid,
                outcome=Outcome.FAILED,
                seconds=0.0,
                cluster_seconds=0.0,
                why=_why(report),
            )

    def pytest_sessionfinish(self) -> None:
        """The session's end."""
        write(self._path, self._records.values())


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longreprtext[-_SHOWN_LETTERS:] if report.failed else ""
