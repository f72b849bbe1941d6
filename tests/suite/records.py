"""What became of each test, written by one process of pytest and read by the report."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path


class Outcome(StrEnum):
    """How a test ended; the worst of its set-up, its call and what clears up after it."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One test of one run."""

    test: str
    """Its node id, such as `tests/unit/http/test_door.py::test_a_door_closes`."""
    outcome: Outcome
    seconds: float
    """Wall time of set-up, call and clearing up; what a module shares counts for its first test."""
    cluster_seconds: float
    """The part of it in which the test waited for a cluster, its start included."""
    nightly: bool = False
    """Whether it is marked as long and rarely informative."""
    why: str = ""
    """The end of what pytest says of a failure."""

    @property
    def folder(self) -> str:
        """The first two folders of its file, such as `tests/unit`."""
        return "/".join(self.test.partition("::")[0].split("/")[:2])


def write(path: Path, records: Iterable[Record]) -> None:
    """A line of JSON for each."""
    path.write_text("".join(f"{json.dumps(asdict(one))}\n" for one in records), "utf-8")


def read(path: Path) -> list[Record]:
    """What `write` wrote; nothing where the process of pytest never came to its end."""
    if not path.exists():
        return []
    lines = map(json.loads, path.read_text("utf-8").splitlines())
    return [Record(**{**line, "outcome": Outcome(line["outcome"])}) for line in lines]
