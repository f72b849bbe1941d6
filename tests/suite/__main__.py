"""`python -m suite test`, or `nightly`: the whole suite, and the table of where the time went."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Final

from cluster.signals import termination_as_interrupt
from suite.jobs import run_all
from suite.lanes import jobs
from suite.last_nightly import clean_commit, remember, told
from suite.records import Outcome, Record, read
from suite.report import table

_BUDGETS: Final = Path(__file__).with_name("budgets.toml")


def main() -> int:
    """1 where anything failed, or where no test ran."""
    parser = argparse.ArgumentParser(prog="python -m suite", description=__doc__)
    parser.add_argument("which", choices=("test", "nightly"))
    nightly = parser.parse_args().which == "nightly"
    began, commit = time.monotonic(), clean_commit()
    with tempfile.TemporaryDirectory(prefix="batchedmodel-suite-") as folder:
        records = Path(folder)
        with termination_as_interrupt():
            done = asyncio.run(run_all(jobs(records, nightly="all" if nightly else "none")))
        found = [one for file in sorted(records.iterdir()) for one in read(file)]
    budgets = {} if nightly else tomllib.loads(_BUDGETS.read_text("utf-8"))["minutes"]
    wall = time.monotonic() - began
    print(table(found, budgets, wall_seconds=wall, load=os.getloadavg()[2]))  # noqa: T201
    failed = sorted(name for name, good in done.items() if not good)
    for name in failed:
        print(f"failed: {name}")  # noqa: T201
    good = not failed and bool(found)
    if good and nightly and commit is not None and _is_seen(found) and clean_commit() == commit:
        remember(commit)
    print(told())  # noqa: T201
    _print_counts(found, failed)
    return 0 if good else 1


def _is_seen(found: list[Record]) -> bool:
    """Whether no nightly test was skipped, as those of a cluster are where there can be none."""
    return not any(one.nightly and one.outcome is Outcome.SKIPPED for one in found)


def _print_counts(found: list[Record], failed: list[str]) -> None:
    """The closing line that machines read. Where a job failed and no test did, it says so too."""
    counts = {one: sum(record.outcome is one for record in found) for one in Outcome}
    counts[Outcome.FAILED] = max(counts[Outcome.FAILED], len(failed))
    words = (f"{counts[one]} {one}" for one in (Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED))
    print(", ".join(words))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
