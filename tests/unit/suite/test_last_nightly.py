"""When all nightly tests last passed, by the history of a repository."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.last_nightly import clean_commit, remember, told

Git = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path, git: Git) -> Path:
    git("init", "--quiet")
    for name in ("operator/plan.py", "sidecar/batcher.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "--quiet", "--message=first")
    return tmp_path


@pytest.fixture
def git(tmp_path: Path) -> Git:
    def run(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", "-C", tmp_path, *name, *words], check=True)

    return run


def test_the_commits_since_then_are_counted(root: Path, git: Git) -> None:
    passed = root / ".git" / "passed"
    first = _commit(root)
    remember(first, passed)
    assert told(root, passed) == f"all nightly tests last passed 0 commits ago, at {first}"
    (root / "operator/plan.py").write_text("committed")
    git("commit", "--quiet", "--all", "--message=second")
    assert told(root, passed) == f"all nightly tests last passed 1 commits ago, at {first}"


@pytest.mark.parametrize("known", ["", "0123456789012345678901234567890123456789"])
def test_a_commit_that_is_not_in_the_history_tells_nothing(root: Path, known: str) -> None:
    passed = root / ".git" / "passed"
    passed.write_text(known)
    assert told(root, passed).endswith("is not known here")


def test_where_there_is_no_history_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "passed").write_text("HEAD")
    assert told(tmp_path, tmp_path / "passed").endswith("is not known here")


def test_a_tree_is_a_commit_when_nothing_is_besides(root: Path) -> None:
    assert len(_commit(root)) == 40
    (root / "more").touch()
    assert clean_commit(root) is None


def test_a_folder_without_a_history_is_no_commit(tmp_path: Path) -> None:
    assert clean_commit(tmp_path) is None


def _commit(root: Path) -> str:
    found = clean_commit(root)
    assert found is not None
    return found
