"""A module can be read at one sitting, and knows few others."""

import ast
from pathlib import Path
from typing import Final

import pytest

from support.repository import FOLDERS, ROOT

MAX_LINES: Final = 700
MAX_IMPORTS: Final = 15
COMPOSING: Final = {
    "sidecar/batchedmodel_sidecar/service.py",
    "model_server/batchedmodel_model_server/lifecycle/service.py",
    "operator/batchedmodel_operator/__main__.py",
    "autoscaler/batchedmodel_autoscaler/service.py",
}
"""Each puts a process together."""
MODULES: Final = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imports(source: str) -> set[str]:
    """The modules of ours that a module names in its imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name for name in names if name.startswith("batchedmodel_")}


def name_of(path: Path) -> str:
    """A module's path from the root."""
    return path.relative_to(ROOT).as_posix()


def test_modules_are_short() -> None:
    lengths = {name_of(path): path.read_text("utf-8").count("\n") for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_modules_import_few_of_ours() -> None:
    widths = {name_of(path): len(imports(path.read_text("utf-8"))) for path in MODULES}
    others = widths.keys() - COMPOSING
    assert {name: widths[name] for name in others if widths[name] > MAX_IMPORTS} == {}


@pytest.mark.parametrize("name", sorted(COMPOSING))
def test_what_may_import_more_is_there(name: str) -> None:
    assert (ROOT / name).exists()
