"""The folders and files that CONTRIBUTING.md sends people to are there."""

import re
from pathlib import Path

import pytest

from support.repository import FOLDERS, ROOT

SECTION = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Where a change belongs")[1]
ROWS = re.findall(r"^\| (?!The change|---)(.+) \|$", SECTION.split("\n## ")[0], re.M)


def place(named: str) -> Path:
    """What the table calls `X/rest`: in the package of folder X where there is one."""
    first, _, rest = named.partition("/")
    return ROOT / first / f"batchedmodel_{first}" / rest if first in FOLDERS else ROOT / named


def test_the_table_has_at_least_twenty_examples() -> None:
    assert len(ROWS) >= 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" |")[0])
def test_every_place_of_an_example_is_there(row: str) -> None:
    named = re.findall(r"`([\w./]+/[\w./]+)`", row)
    assert named
    assert [one for one in named if not place(one).exists()] == []
