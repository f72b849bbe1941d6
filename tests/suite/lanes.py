"""The lanes of a run: what needs pods, what needs an API server alone, the rest, and timings.

Two cores are shared by all of them, and most tests wait most of the time. What measures time runs
alone, when all others have ended.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suite.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Tests that run in processes of their own, beside those of other lanes."""

    name: str
    paths: tuple[str, ...]
    workers: int = 0
    """Processes that share the tests; 0: pytest's own, which owns what all of them share."""
    whole_files: bool = True
    """Whether the tests of a file stay together, as those do that share what its fixtures make."""
    within: tuple[str, ...] = ()
    """The command that runs pytest."""
    after: tuple[str, ...] = ()
    """Jobs that must have ended. Where what they make is not to be had, tests are skipped."""


_INSTALLED: Final = (sys.executable, "-m", "support.installed", "run", "--skips", "--")
_ON_A_NODE: Final = ("programs-of-a-node", "images")
LANES: Final = (
    Lane(
        name="stories",
        paths=(
            "tests/end_to_end/test_stories.py",
            "tests/end_to_end/test_stream_story.py",
            "tests/end_to_end/test_generation_story.py",
            "tests/end_to_end/test_user_range_story.py",
        ),
        workers=3,
        whole_files=False,
        within=_INSTALLED,
        after=_ON_A_NODE,
    ),
    # What stops parts of a cluster, or takes the installation away, has one of its own.
    Lane(
        name="node",
        paths=("tests/end_to_end", "tests/cluster"),
        after=("stories", *_ON_A_NODE),
    ),
    # By itself, or its images would be put into another store first.
    Lane(
        name="networks",
        paths=("tests/end_to_end/test_ipv6_story.py", "tests/end_to_end/test_networks_story.py"),
        after=("node", *_ON_A_NODE),
    ),
    Lane(
        name="control-plane",
        paths=("tests/clustered",),
        workers=2,
        after=("programs",),
    ),
    # What needs no compiled modules comes first, while these are made.
    Lane(
        name="rest",
        paths=("tests/architecture", "tests/unit", "tests/attacks", "tests/integration"),
        workers=2,
    ),
)
_ALONE: Final = Lane(
    name="alone", paths=("tests",), after=("checks", *(lane.name for lane in LANES))
)
"""What measures time, or storms, has the machine for itself."""


def jobs(records: Path, *, nightly: str) -> list[Job]:
    """All that a run does. Those that make things ready do nothing where these are in the cache.

    `records`: a folder for a file of records of each lane. `nightly`: as the option of pytest.
    """
    lanes = [
        Job(
            name=lane.name,
            after=lane.after,
            needs=("environment",),
            commands=(_pytest(lane, records, nightly),),
        )
        for lane in (*LANES, _ALONE)
    ]
    return [
        Job(name="environment", commands=(("make", "environment"),)),
        Job(
            name="programs",
            commands=(_python("cluster", "prepare", "control-plane"),),
            may_fail=True,
        ),
        Job(
            name="programs-of-a-node",
            after=("programs",),
            commands=(_python("cluster", "prepare", "node"),),
            may_fail=True,
        ),
        Job(
            name="compiled",
            needs=("environment",),
            commands=(("make", "compiled"),),
            may_fail=True,
        ),
        Job(name="images", commands=(_python("support.installed", "images"),), may_fail=True),
        Job(
            name="checks",
            needs=("environment",),
            commands=(("make", "lint", "types", "imports"),),
        ),
        *lanes,
    ]


def _pytest(lane: Lane, records: Path, nightly: str) -> tuple[str, ...]:
    shared: tuple[str, ...] = ()
    if lane.workers:
        how = ("loadfile", "--no-loadscope-reorder") if lane.whole_files else ("load",)
        shared = (f"--numprocesses={lane.workers}", "--dist", *how)
    others = {path for other in LANES if other is not lane for path in other.paths}
    apart = [f"--ignore={path}" for path in sorted(others) if _is_below(path, lane)]
    marks = "alone" if lane is _ALONE else "not alone"
    return (
        *lane.within,
        *_python("pytest", "--quiet", *shared, f"-m={marks}"),
        *(f"--record={records / lane.name}", f"--nightly={nightly}", *lane.paths, *apart),
    )


def _is_below(path: str, lane: Lane) -> bool:
    return lane is not _ALONE and any(path.startswith(f"{one}/") for one in lane.paths)


def _python(module: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *words)
