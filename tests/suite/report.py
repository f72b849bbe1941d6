"""The table at the end of a run: where the minutes went, and which folders passed their budget."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from suite.records import Outcome, Record

SLOWEST: Final = 40
_SHOWN_LETTERS: Final = 240


def table(
    records: Sequence[Record], budgets: Mapping[str, float], *, wall_seconds: float, load: float
) -> str:
    """The whole table.

    `budgets`: minutes per folder; none at all where none are to be held. `load`: the machine's load
    average over the run's last quarter of an hour.
    """
    folders: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        folders[record.folder].append(record)
    lines = ["", "tests  minutes  budget  waited  folder"]
    warnings = []
    for folder, its in sorted(folders.items()):
        minutes, budget = _minutes(its), budgets.get(folder)
        allowed = "none" if budget is None else f"{budget:.1f}"
        waited = sum(one.cluster_seconds for one in its) / 60
        lines.append(f"{len(its):5}  {minutes:7.1f}  {allowed:>6}  {waited:6.1f}  {folder}")
        if budget is None and budgets:
            warnings.append(f"warning: {folder} has no budget")
        elif budget is not None and minutes > budget:
            warnings.append(
                f"warning: {folder} took {minutes:.1f} minutes, its budget is {budget:.1f}"
            )
    lines += ["", f"the {SLOWEST} slowest, in seconds (of these waited for a cluster):"]
    slowest = sorted(records, key=lambda one: one.seconds, reverse=True)[:SLOWEST]
    lines += [f"{one.seconds:7.1f} ({one.cluster_seconds:.1f})  {one.test}" for one in slowest]
    failed = sorted(
        (one for one in records if one.outcome is Outcome.FAILED), key=lambda one: one.test
    )
    lines += ["", *warnings, *(line for one in failed for line in _shown(one))]
    waited = sum(one.cluster_seconds for one in records) / 60
    lines.append(
        f"{wall_seconds / 60:.1f} minutes of wall time, {_minutes(records):.1f} minutes of tests,"
        f" {waited:.1f} of them waiting for a cluster; load average {load:.1f}"
    )
    # Once more and short, as of a long output often the last lines alone are kept.
    lines += [f"failed: {one.test}: {_reason(one)}"[:_SHOWN_LETTERS] for one in failed]
    return "\n".join(lines)


def _minutes(records: Sequence[Record]) -> float:
    return sum(one.seconds for one in records) / 60


def _shown(failed: Record) -> list[str]:
    """A test that failed, and why: whoever sees only the end of a run's output sees it."""
    return [f"failed: {failed.test}", *(f"  {line}" for line in failed.why.splitlines())]


def _reason(failed: Record) -> str:
    """The first line that says what was wrong: pytest begins it with an E."""
    lines = [line.strip() for line in failed.why.splitlines()]
    said = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    return next(iter([*said, *lines[-1:]]), "")
