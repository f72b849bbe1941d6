"""Which nightly tests are due, by the history of a repository."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.changes import belongs, changed_files, clean_commit, remember

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


def test_nothing_is_changed_at_the_commit_that_passed(root: Path, tmp_path: Path) -> None:
    passed = tmp_path / "passed"
    remember(_commit(root), passed)
    assert changed_files(root, passed) == frozenset({"passed"})


def test_commits_edits_and_new_files_are_changes(root: Path, git: Git) -> None:
    passed = root / ".git" / "passed"
    remember(_commit(root), passed)
    (root / "operator/plan.py").write_text("committed")
    git("commit", "--quiet", "--all", "--message=second")
    (root / "sidecar/batcher.py").write_text("edited")
    (root / "sidecar/new.py").touch()
    wanted = {"operator/plan.py", "sidecar/batcher.py", "sidecar/new.py"}
    assert changed_files(root, passed) == frozenset(wanted)


def test_what_is_moved_away_is_a_change_where_it_was(root: Path, git: Git) -> None:
    passed = root / ".git" / "passed"
    remember(_commit(root), passed)
    git("mv", "operator/plan.py", "sidecar/plan.py")
    assert changed_files(root, passed) == frozenset({"operator/plan.py", "sidecar/plan.py"})


@pytest.mark.parametrize("known", ["", "0123456789012345678901234567890123456789"])
def test_a_commit_that_is_not_in_the_history_tells_nothing(root: Path, known: str) -> None:
    passed = root / ".git" / "passed"
    passed.write_text(known)
    assert changed_files(root, passed) is None


def test_where_there_is_no_history_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "passed").write_text("HEAD")
    assert changed_files(tmp_path, tmp_path / "passed") is None


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


@pytest.mark.parametrize(
    ("changed", "due"),
    [
        ({"operator/plan.py"}, True),
        ({"operators/plan.py"}, False),
        ({"tests/test_it.py"}, True),
        ({"tests/test_other.py"}, False),
        ({"contract/manifest.py"}, True),
        ({"tests/support/chain.py"}, True),
        (set(), False),
        (None, True),
    ],
)
def test_a_test_is_due_when_what_it_belongs_to_has_changed(
    changed: set[str] | None, due: bool
) -> None:
    files = None if changed is None else frozenset(changed)
    assert belongs("tests/test_it.py", ("operator",), files) is due
