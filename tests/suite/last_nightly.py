"""When every nightly test was last seen to pass.

The file `nightly-passed` beside this one names the commit at which that was; `make nightly`
writes it, and it is committed.
"""

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PASSED: Final = Path(__file__).with_name("nightly-passed")


def told(root: Path = ROOT, passed: Path = PASSED) -> str:
    """A line for whoever reads the end of a run."""
    try:
        known = passed.read_text("utf-8").strip()
        (commit,) = _git(root, "rev-parse", "--verify", f"{known}^{{commit}}")
        (count,) = _git(root, "rev-list", "--count", f"{commit}..HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "when all nightly tests last passed is not known here"
    return f"all nightly tests last passed {count} commits ago, at {commit}"


def remember(commit: str, passed: Path = PASSED) -> None:
    """Writes down that all nightly tests passed at a commit."""
    passed.write_text(f"{commit}\n", "utf-8")


def clean_commit(root: Path = ROOT) -> str | None:
    """The commit that is checked out, whole and with nothing besides; None where none is."""
    try:
        (commit,) = _git(root, "rev-parse", "HEAD")
        return None if _git(root, "status", "--porcelain") else commit
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *words: str) -> list[str]:
    command = ["git", "-C", str(root), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()
