"""How good the scheduler is: every figure that we claim for the policy `Deadline`.

All is simulated in virtual time with the policy that ships, everything of it switched on; only the
rows named "wall time" depend on this machine. Numerator and denominator of a ratio meet identical
requests. The constants of the policy were chosen on other seeds than are reported here.

    python bench/scheduling.py [--quick] [--json FILE] [--trace FILE]
"""

import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from batchedmodel_cli.simulator.traces import Trace, read_trace
from bench_report import Figure, new_parser, report
from scheduling_bench import (
    callers,
    costs,
    equal_lengths,
    estimator,
    latency,
    mixed_lengths,
    overload,
    pipelining,
    troubled,
    two_deadlines,
    unseen_trials,
)
from scheduling_bench.scenarios import Plan

FULL: Final = Plan(seeds=tuple(range(1001, 1011)), requests=10_000, tolerance=0.005)
QUICK: Final = Plan(seeds=(1001, 1002), requests=1_200, tolerance=0.02)
AZURE_CONVERSATION: Final = Path(__file__).parent / "data" / "azure_conversation.csv"
_PROCESSES: Final = 2


def measure(plan: Plan, trace: Trace) -> list[Figure]:
    """All figures, in the order of the table."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=spawning) as pool:
        # The longest pieces of work come first, so that no process ends with them alone.
        replays = mixed_lengths.submit_trace(pool, plan, trace)
        windows = mixed_lengths.submit_windows(pool, plan)
        packed = mixed_lengths.submit_packed(pool, plan)
        equal = equal_lengths.submit(pool, plan)
        pipelines = pipelining.submit(pool, plan)
        latencies = latency.submit(pool, plan)
        estimates = estimator.submit(pool, plan)
        unlike = callers.submit(pool, plan)
        two = two_deadlines.submit(pool, plan)
        unseen = unseen_trials.submit(pool, plan, trace, quick=plan is QUICK)
        troubles = troubled.submit(pool, plan, quick=plan is QUICK)
        figures = [
            *equal_lengths.report(equal),
            *mixed_lengths.report_windows(windows),
            *mixed_lengths.report_packed(packed),
            *mixed_lengths.report_windows(replays),
            *latency.report(latencies),
            *overload.report(equal, windows),
            *callers.report(unlike),
            *estimator.report(estimates),
            *pipelining.report(pipelines),
            *two_deadlines.report(two),
            *unseen_trials.report(unseen),
            *troubled.report(troubles),
        ]
    # Times are taken when the other processes have ended.
    return [*figures, *costs.report(plan)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    parser = new_parser("How good the scheduler is, in the simulator.")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        default=AZURE_CONVERSATION,
        help="replay this CSV (TIMESTAMP,ContextTokens or seconds,length) instead of Azure's",
    )
    options = parser.parse_args(arguments)
    trace = read_trace(options.trace.read_text(encoding="utf-8"))
    return report(measure(QUICK if options.quick else FULL, trace), options.json)


if __name__ == "__main__":
    sys.exit(main())
