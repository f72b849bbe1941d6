"""What users, pods and objects of other namespaces do to healthy models through the control plane.

etcd, API server and Kubernetes' controllers are real; operator and autoscaler are processes with
the rights that the chart gives them; one process answers for all sidecars. Attacks of a theme run
together beside ten healthy models and 190 that are suspended. `--quick` has two themes, few objects
and no crowd, and says so.

    python bench/control_plane_attacks.py [--quick] [--json FILE] [--theme NAME ...]
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from bench_report import Figure, at_most, new_parser, report, tell
from cluster import Options, Settings, Unavailable, running_control_plane
from support.plane_attacks.catalogue import THEMES
from support.plane_attacks.fuzz import fuzz
from support.plane_attacks.harness import Report, besieged, p99

_MEGABYTE: Final = 1e6
_HPA_SECONDS: Final = "2s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How much of everything."""

    themes: tuple[str, ...]
    seconds: float
    share: float
    crowd: int
    random_objects: int


_FULL: Final = _Plan(
    themes=tuple(theme.name for theme in THEMES),
    seconds=20.0,
    share=1.0,
    crowd=190,
    random_objects=2_000,
)
_QUICK: Final = _Plan(themes=("storm", "hands"), seconds=4.0, share=0.1, crowd=0, random_objects=10)


async def _measured(plan: _Plan) -> dict[str, Report]:
    """By name of the theme."""
    found: dict[str, Report] = {}
    options = Options(autoscaler_sync=_HPA_SECONDS, audit=True)
    settings = Settings.from_environment(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        running_control_plane(settings, options=options) as plane,
    ):
        async with besieged(plane, Path(folder)) as siege:
            tell("a control plane with healthy models")
            if plan.crowd:
                await siege.crowd(plan.crowd)
            found["nobody attacks"] = await siege.bout([], plan.seconds)
            for theme in THEMES:
                if theme.name in plan.themes:
                    bout = siege.bout(theme.attacks, plan.seconds, share=plan.share)
                    found[theme.name] = await bout
                    tell(f"{theme.name}: {found[theme.name].lines()}")
            if plan.random_objects:
                drawn = fuzz(plan.random_objects, seed=1)
                found[drawn.name] = await siege.bout([drawn], None)
                tell(f"{drawn.name}: {found[drawn.name].lines()}")
    return found


def _figures(name: str, seen: Report) -> list[Figure]:
    healthy = seen.healthy
    figures = [
        at_most(f"{name}: an edit is applied, p99", p99(healthy.applied), "s", 2.0),
        Figure(name=f"{name}: an edit is reported, p99", value=p99(healthy.reported), unit="s"),
        Figure(name=f"{name}: drift is mended, p99", value=p99(healthy.mended), unit="s"),
        Figure(name=f"{name}: more load, more pods", value=p99(healthy.scaled), unit="s"),
        Figure(name=f"{name}: the API server itself, p99", value=p99(healthy.api), unit="s"),
        at_most(f"{name}: metric's age", seen.metric_age, "s", 10.0),
        at_most(f"{name}: no metric", float(len(healthy.wrong)), "", 0.0),
        at_most(f"{name}: watching failed", float(seen.deaf), "", 0.0),
    ]
    for process, of in (("operator", seen.operator), ("autoscaler", seen.autoscaler)):
        figures += [
            at_most(f"{name}: restarts of the {process}", float(of.restarts), "", 0.0),
            at_most(f"{name}: memory of the {process}", of.peak_bytes / _MEGABYTE, "MB", 250.0),
            Figure(
                name=f"{name}: longest stop of the {process}",
                value=1e3 * of.longest_stop,
                unit="ms",
            ),
        ]
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    parser = new_parser(__doc__)
    names = [theme.name for theme in THEMES]
    parser.add_argument("--theme", action="append", choices=names, metavar="NAME")
    options = parser.parse_args(arguments)
    plan = _QUICK if options.quick else _FULL
    if options.theme:
        plan = _Plan(
            themes=tuple(options.theme),
            seconds=plan.seconds,
            share=plan.share,
            crowd=plan.crowd,
            random_objects=0,
        )
    try:
        found = asyncio.run(_measured(plan))
    except Unavailable as reason:
        # Like the tests that need it: this machine cannot, which is no fault of the project.
        print(f"no control plane here: {reason}")
        return 0
    figures = [one for name, seen in found.items() for one in _figures(name, seen)]
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
