"""How long a newcomer waits: from `git clone` to the first answer of `make run`, by phase.

A clone of this checkout's commit in a temporary folder gets an environment of its own. Wheels come
from pip's cache, as far as pip keeps there what the index sends; `--wheels FOLDER` takes them from
a folder instead, and asks no index. `--fill` installs once before, so that they are there.

    python bench/first_answer.py [--fill] [--wheels FOLDER] [--json FILE]
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from bench_report import Figure, at_most, new_parser, report

ROOT: Final = Path(__file__).resolve().parents[1]
GOAL_SECONDS: Final = 60.0
_PHASES: Final = (
    ("environment", "==> installing"),
    ("packages", "starting minilm"),
    ("start", "Ctrl-C stops it"),
)
"""By the line of `make run` that ends it; the clone is before them, and the answer behind."""
_EMBED: Final = b'{"model": "minilm", "input": "A sentence."}'
_JSON: Final = {"content-type": "application/json"}


def first_answer(folder: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """The seconds of each phase, in order."""
    seconds: dict[str, float] = {}
    began = time.monotonic()

    def ended(phase: str) -> None:
        nonlocal began
        now = time.monotonic()
        seconds[phase] = now - began
        began = now

    clone = ["git", "clone", "--quiet", str(ROOT), str(folder)]
    subprocess.run(clone, check=True)
    ended("clone")
    with subprocess.Popen(
        ["make", "run", "PORT=0"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as running:
        assert running.stdout is not None
        try:
            service = ""
            lines = _shown(running.stdout)
            for phase, last in _PHASES:
                for line in lines:
                    if line.split()[:1] == ["service"]:
                        service = line.split()[1]
                    if last in line:
                        break
                else:
                    raise RuntimeError(f"`make run` ended before the line with {last!r}")
                ended(phase)
            with urlopen(Request(f"{service}/v1/embeddings", _EMBED, _JSON)) as answered:
                answered.read()
            ended("answer")
        finally:
            os.killpg(running.pid, signal.SIGINT)
            for _ in running.stdout:
                pass
    return seconds


def _shown(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        sys.stderr.write(line)
        yield line


def main() -> int:
    """Print the table; 1 when the goal is missed."""
    parser = new_parser(__doc__)
    parser.add_argument("--fill", action="store_true", help="install once before")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels instead of an index")
    options = parser.parse_args()
    # As a person's shell has it, whatever runs this.
    unset = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    if options.wheels is not None:
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(options.wheels.resolve())}
    with tempfile.TemporaryDirectory(prefix="first-answer-") as name:
        if options.fill:
            first_answer(Path(name, "before"), environment)
            shutil.rmtree(Path(name, "before"))
        seconds = first_answer(Path(name, "clone"), environment)
    figures = [Figure(name=phase, value=took, unit="s") for phase, took in seconds.items()]
    total = at_most("clone to first answer", sum(seconds.values()), "s", GOAL_SECONDS)
    return report([*figures, total], options.json)


if __name__ == "__main__":
    sys.exit(main())
