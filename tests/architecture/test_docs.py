"""The documents say what the code does, as far as a machine can tell."""

import re
import tomllib
from pathlib import Path

import pytest

from batchedmodel_contract import metric_names
from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from support.repository import FOLDERS, ROOT
from support.settings_table import settings_table

README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / folder / f"batchedmodel_{folder}" for folder in FOLDERS]


def test_the_readme_shows_every_setting_as_the_contract_declares_it() -> None:
    assert settings_table() in README, f"README.md should hold this table:\n{settings_table()}"


def test_the_readme_gives_a_reason_for_every_dependency_and_for_no_other() -> None:
    wanted = {
        re.split(r"[<>=~\[]", requirement)[0].lower()
        for extra, requirements in PROJECT["project"]["optional-dependencies"].items()
        if extra != "all"
        for requirement in requirements
    }
    section = README.split("## Dependencies")[1].split("\n## ")[0]
    explained = {row[0].lower() for row in re.findall(r"^\| `([\w-]+)` \|(.+)\|$", section, re.M)}
    assert explained == wanted


def test_every_dependency_is_pinned() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items():
        if extra == "all":
            continue
        for requirement in requirements:
            assert re.split(r"[<>=~\[]", requirement)[0].lower() in pinned, requirement


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_architecture_page_has_a_sentence_for_every_module(package: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split(f"### `{package.name}`")[1].split("\n###")[0].split("\n## ")[0]
    described = set(re.findall(r"^- `([\w/]+)`: ", section, re.M))
    modules = {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert described == modules


def test_the_operations_page_names_every_metric_and_every_label_value() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    names = [
        value
        for name, value in vars(metric_names).items()
        if name.isupper() and name != "PREFIX" and isinstance(value, str)
    ]
    assert len(names) > 10
    for name in names:
        assert f"`{name}" in page, name
    for member in (*Rejection, *Outcome, *ReleaseReason):
        assert f"`{member.value}`" in page, member
