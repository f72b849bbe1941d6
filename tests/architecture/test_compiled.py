"""Nothing interpreted inherits from what is compiled: that fails where it is first made."""

import ast
from pathlib import Path

from compile_modules import compiled_sources
from support.repository import ROOT

PACKAGES = [path.parent for path in ROOT.glob("*/batchedmodel_*/__init__.py")]


def test_nothing_interpreted_inherits_from_a_compiled_class() -> None:
    compiled = {_module(path) for path in compiled_sources()}
    assert "batchedmodel_http.connection" in compiled
    heirs = [
        f"{_module(path)}: {name}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        if _module(path) not in compiled
        for name in _bases_from(compiled, ast.parse(path.read_text("utf-8")))
    ]
    assert heirs == []


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


def _bases_from(compiled: set[str], tree: ast.Module) -> list[str]:
    """The bases of its classes that come from compiled modules."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in compiled
        for alias in node.names
    }
    bases = [
        base.value if isinstance(base, ast.Subscript) else base
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    ]
    return [base.id for base in bases if isinstance(base, ast.Name) and base.id in imported]
