"""The pages of docs/ are listed in the site's navigation, and no link leads nowhere.

`make docs` says the same of the built site; this needs no generator.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.repository import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]

# `\|` is a bar within a table's cell; what stands in code is no link.
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def listed(entries: list[Any]) -> Iterator[str]:
    """The files that a navigation names, in its order."""
    for entry in entries:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(below, list):
            yield from listed(below)
        else:
            yield below


def anchors(text: str) -> set[str]:
    """Of the headings, as the site and code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    return [
        link
        for link in _LINK.findall(_CODE.sub("", page.read_text("utf-8")))
        if not _leads(page, link)
    ]


def _leads(page: Path, link: str) -> bool:
    if "://" in link:
        return True
    name, _, anchor = link.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists() or (page.is_relative_to(DOCS) and not file.is_relative_to(DOCS)):
        return False
    return not anchor or anchor in anchors(file.read_text("utf-8"))


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES]
    assert sorted(listed(site["nav"])) == sorted(pages)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_leads_nowhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `title`\n[a](#a-title) [b](#no) [c](no.md) [d](page.md#a-title) `[e](no)`")
    assert broken(page) == ["#no", "no.md"]
