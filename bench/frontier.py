"""Fairness to long rows against rate: what each policy has in time of long rows, and of all.

A twentieth of the rows is twenty times as long as the others, on a padded device with a knee, on
and off, at loads from a little below what it can serve to three times that. Ours knows what the
warm-up would have measured, its rivals know all times; simulated, on seeds of its own.

    python bench/frontier.py [--quick] [--json FILE]
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.engine import Request, Run, simulate
from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_contract.manifest.batching import Objective
from bench_report import Figure, new_parser, report, tell
from scheduling_bench.unseen import Unseen, written_down
from scheduling_bench.unseen_trials import ours, plant_of, requests_of, rivals

_TRACE: Final = Path(__file__).parent / "data" / "azure_conversation.csv"
_ROW: Final = "kneed, padded, rare and long, loose, on and off"
_LOADS: Final = (0.9, 1.2, 1.5, 2.0, 3.0)
_RIVALS: Final = ("nexus", "plan for rows", "plan for work")
_LONG: Final = 100
"""Rows of more tokens are the long ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    requests: int


_FULL: Final = _Plan(loads=_LOADS, seeds=(6001, 6002, 6003, 6004, 6005), requests=12_000)
_QUICK: Final = _Plan(loads=(1.2, 3.0), seeds=(6001,), requests=3_000)


def _shares(requests: Sequence[Request], run: Run) -> tuple[float, float]:
    """Of all and of long rows those that were in time, after a third in which ours may learn."""
    judged = list(zip(requests, run.finished, strict=True))[len(requests) // 3 :]
    in_time = np.array([0 <= at <= one.due for one, at in judged])
    is_long = np.array([one.length > _LONG for one, _ in judged])
    return float(in_time.mean()), float(in_time[is_long].mean())


def _tried(row: Unseen, plan: _Plan) -> dict[str, list[tuple[float, float]]]:
    """By policy, of each seed."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in plan.seeds:
        requests = requests_of(row, seed, plan.requests)
        told = rivals(row)
        policies = {
            "Work": ours(row, seed, Objective.WORK),
            "Rows": ours(row, seed, Objective.ROWS),
        } | {name: told[name] for name in _RIVALS}
        for name, policy in policies.items():
            run = simulate(requests, [(policy, plant_of(row, seed, plan.requests))])
            found.setdefault(name, []).append(_shares(requests, run))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and report; `--quick` takes two loads and one seed."""
    options = new_parser(__doc__).parse_args(arguments)
    plan = _QUICK if options.quick else _FULL
    rows = {one.name: one for one in written_down(read_trace(_TRACE.read_text("utf-8")))}
    figures = []
    for load in plan.loads:
        tell(f"load {load:g}")
        for policy, shares in _tried(replace(rows[_ROW], load=load), plan).items():
            of_all, of_long = np.mean(shares, axis=0).tolist()
            name = f"load {load:g}, {policy}"
            figures += [
                Figure(name=f"{name}: rows in time", value=100 * of_all, unit="%"),
                Figure(name=f"{name}: long rows in time", value=100 * of_long, unit="%"),
            ]
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
