"""What has changed since every nightly test was last seen to pass.

The file `nightly-passed` beside this one names the commit at which that was; `make nightly`
writes it, and it is committed with the work that it belongs to.
"""

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PASSED: Final = Path(__file__).with_name("nightly-passed")


def changed_files(root: Path = ROOT, passed: Path = PASSED) -> frozenset[str] | None:
    """Files that are not as in that commit, in the work tree or in commits since.

    None where it cannot be told: there is no history here, or the commit is not in it.
    """
    try:
        commit = passed.read_text("utf-8").strip()
        differ = _git(root, "diff", "--name-only", commit, "--")
        fresh = _git(root, "ls-files", "--others", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(differ) | frozenset(fresh)


def belongs(own_file: str, watched: tuple[str, ...], changed: frozenset[str] | None) -> bool:
    """Whether a nightly test is due: its own file or one below `watched` has changed."""
    if changed is None:
        return True
    return any(
        file == one or file.startswith(f"{one}/")
        for file in changed
        for one in (own_file, *watched)
    )


def remember(root: Path = ROOT, passed: Path = PASSED) -> str:
    """Writes down that all passed at the commit that is checked out, and names it."""
    (commit,) = _git(root, "rev-parse", "HEAD")
    passed.write_text(f"{commit}\n", "utf-8")
    return commit


def is_clean(root: Path = ROOT) -> bool:
    """Whether what is checked out is a commit, whole and with nothing besides."""
    return _git(root, "status", "--porcelain") == []


def _git(root: Path, *words: str) -> list[str]:
    command = ["git", "-C", str(root), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()
