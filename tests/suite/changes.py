"""What has changed since every nightly test was last seen to pass.

The file `nightly-passed` beside this one names the commit at which that was; `make nightly`
writes it, and it is committed with the work that it belongs to.
"""

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PASSED: Final = Path(__file__).with_name("nightly-passed")
_UNDER_ALL: Final = (
    *("constraints.txt", "contract", "kube", "pyproject.toml"),
    *("tests/conftest.py", "tests/cluster", "tests/support"),
)
"""What every test stands on."""


def changed_files(root: Path = ROOT, passed: Path = PASSED) -> frozenset[str] | None:
    """Files that are not as in that commit, in the work tree or in commits since.

    None where it cannot be told: there is no history here, or the commit is not in it.
    """
    try:
        commit = passed.read_text("utf-8").strip()
        differ = _git(root, "diff", "--name-only", "--no-renames", commit, "--")
        fresh = _git(root, "ls-files", "--others", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(differ) | frozenset(fresh)


def belongs(own_file: str, watched: tuple[str, ...], changed: frozenset[str] | None) -> bool:
    """Whether a nightly test is due.

    It is when its own file has changed, one below `watched`, or one that all tests stand on.
    """
    if changed is None:
        return True
    paths = (own_file, *watched, *_UNDER_ALL)
    return any(file == path or file.startswith(f"{path}/") for file in changed for path in paths)


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
