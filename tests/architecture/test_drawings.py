"""The pictures in the repository are what their scripts draw, by figures that were measured."""

import re
from types import ModuleType
from xml.etree import ElementTree

import pytest

import gain
import minilm_rates
import objectives
import parts
from support.repository import ROOT

DRAWINGS = ROOT / "docs" / "drawings"
by_drawing = pytest.mark.parametrize(
    "drawing",
    [parts, gain, objectives, minilm_rates],
    ids=["parts", "gain", "objectives", "minilm_rates"],
)


@by_drawing
def test_the_picture_is_what_its_script_draws(drawing: ModuleType) -> None:
    file = DRAWINGS / f"{drawing.__name__}.svg"
    assert file.read_text("utf-8") == drawing.content(), "run `make drawings`"


@by_drawing
def test_the_picture_is_well_formed(drawing: ModuleType) -> None:
    assert ElementTree.fromstring(drawing.content()).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_figures_that_are_drawn_are_those_of_the_performance_page() -> None:
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    for figure in gain.figures():
        row = re.search(rf"^\| {re.escape(figure['name'])} \| (.+)$", page, re.M)
        assert row is not None, figure["name"]
        median, rounds = row[1].split(" | ")[:2]
        assert median == f"{figure['value']} {figure['unit']}"
        assert [float(one) for one in rounds.split(" to ")] == [figure["low"], figure["high"]]


def test_the_rates_that_are_drawn_are_those_of_the_performance_page() -> None:
    """A picture beside a table that was measured anew would show the old day."""
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert minilm_rates.about() in page
    columns = {1: 3, 8: 4, 64: 5}
    for bar in minilm_rates.bars():
        row = re.search(rf"^\| {re.escape(bar.server)} \| {bar.datatype} \|.+\(.+$", page, re.M)
        assert row is not None, bar
        cell = row[0].split(" | ")[columns[bar.callers] - 1]
        assert float(cell.split(" ")[0]) == bar.value, bar
