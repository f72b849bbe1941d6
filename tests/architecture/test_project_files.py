"""Rules about files: their length, and where libraries come from."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.repository import FOLDERS, ROOT

MOST_LINES = 700
"""Of a module; what bounds a module first is how many others of ours it imports."""

PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.+!]+")
TOOLS = {"hatch", "importlinter", "mypy", "pytest", "ruff"}
"""That have settings in the project file. None of them installs anything, from wherever."""


def long_files(root: Path) -> set[str]:
    sources = (path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {
        path.relative_to(root).as_posix()
        for path in sources
        if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES
    }


def test_no_module_is_longer_than_one_reads() -> None:
    assert long_files(ROOT) == set()


def test_a_long_module_is_seen(tmp_path: Path) -> None:
    (tmp_path / "sidecar").mkdir()
    (tmp_path / "sidecar/short.py").write_text("\n" * MOST_LINES)
    (tmp_path / "sidecar/long.py").write_text("\n" * (MOST_LINES + 1))
    assert long_files(tmp_path) == {"sidecar/long.py"}


def unpinned(text: str) -> list[str]:
    """Lines of a constraints file that are more or less than a name and its version."""
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    return [
        line
        for line in lines
        if line and not line.startswith("#") and PINNED.fullmatch(line) is None
    ]


def test_constraints_are_names_with_versions_and_nothing_else() -> None:
    assert unpinned((ROOT / "constraints.txt").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "aiohttp @ https://files.example/aiohttp.whl",
        "https://files.example/aiohttp.whl",
        "aiohttp==3.14.5 --hash=sha256:00",
        "--no-binary aiohttp",
        "-f https://files.example",
        "-e ../aiohttp",
        "aiohttp>=3",
        "aiohttp",
    ],
)
def test_a_line_with_an_address_or_without_a_version_is_seen(line: str) -> None:
    assert unpinned(f"# comment\nattrs==26.1.0\n\n{line}\n") == [line]


def requirements(project: dict[str, dict[str, object]]) -> Iterator[str]:
    for holder, names in (
        (project["build-system"], ["requires"]),
        (project["project"], ["dependencies"]),
    ):
        for name in names:
            found = holder.get(name, [])
            assert isinstance(found, list)
            yield from found
    extras = project["project"].get("optional-dependencies", {})
    assert isinstance(extras, dict)
    for extra in extras.values():
        yield from extra


def test_the_project_file_asks_for_names_and_never_for_addresses() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)
    asked = list(requirements(project))
    assert asked
    assert [one for one in asked if "@" in one or "/" in one] == []
    assert project["tool"].keys() <= TOOLS
    assert "://" not in text
