"""No folder or file of ours may take the place of the standard library's module `operator`.

`collections` imports it: with an `operator/__init__.py` in the root, every `python -m` dies.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from support.repository import ROOT

NOT_OURS = {"build", "dist", "node_modules", "__pycache__"}


def impostors(root: Path) -> Iterator[Path]:
    """Everything below that `import operator` could find."""
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [s for s in subfolders if not s.startswith(".") and s not in NOT_OURS]
        here = Path(folder)
        stems = {"operator", "__init__"} if here.name == "operator" else {"operator"}
        code = (name for name in files if name.endswith((".py", ".pyi", ".pyc", ".so")))
        yield from (here / name for name in code if name.split(".")[0] in stems)


def test_nothing_of_ours_can_be_imported_as_operator() -> None:
    assert list(impostors(ROOT)) == []


def test_the_guard_sees_a_package_and_a_module(tmp_path: Path) -> None:
    planted = [tmp_path / "operator/__init__.py", tmp_path / "a/b/operator.py"]
    for path in planted:
        path.parent.mkdir(parents=True)
        path.touch()
    allowed = [tmp_path / "charts/operator/values.py", tmp_path / "operator.yaml"]
    for path in allowed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert sorted(impostors(tmp_path)) == sorted(planted)


def test_the_imported_operator_is_the_standard_librarys_even_in_the_root() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(ran.stdout.strip()).parent == Path(sysconfig.get_path("stdlib"))
