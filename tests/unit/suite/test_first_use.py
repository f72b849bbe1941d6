"""What `make cluster` says, without a cluster."""

import threading
import time

from support.first_use import INVITATION, Work, going_on, plan, telling
from support.repository import ROOT

_PROGRAMS = Work(what="the programs", minutes=11, gigabytes=1)
_IMAGES = Work(what="the images", minutes=12, gigabytes=7.5)


def test_the_plan_says_minutes_room_and_packages_before_anything_is_made() -> None:
    """It began half an hour, 13 GB and an installation of packages without a word."""
    said = plan([_PROGRAMS, _IMAGES], ["runc", "buildah"], cache="/cache")
    assert "some 25 minutes" in said
    assert "into /cache (some 8.5 GB)" in said
    assert "the images: 12 min, 7.5 GB" in said
    assert "apt-get, and left: buildah runc" in said


def test_the_plan_of_a_second_use_is_short_and_asks_for_nothing() -> None:
    said = plan([], [], cache="/cache")
    assert "some 2 minutes" in said
    assert "Everything is in the cache" in said
    assert "GB" not in said
    assert "apt-get" not in said


def test_slow_work_is_told_to_go_on_until_it_ends() -> None:
    """A build of ten minutes said nothing from its first line to its last."""
    lines: list[str] = []
    thrice = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            thrice.set()

    with telling("building", say, every_seconds=0.01):
        assert thrice.wait(60)
    before = len(lines)
    assert all("building, for " in line for line in lines)
    time.sleep(0.05)
    assert len(lines) == before


def test_quick_work_is_not_talked_about() -> None:
    lines: list[str] = []
    with telling("building", lines.append, every_seconds=60):
        pass
    assert lines == []
    assert going_on("building", 20.4) == "  ... building, for 20 s"


def test_what_one_is_told_to_type_is_what_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    commands = [line.strip() for line in INVITATION.splitlines() if line.startswith("  ")]
    assert len(commands) == 3
    assert all(one in readme for one in commands[:2])


def test_make_cluster_is_the_one_that_talks() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").split("\ncluster: ")[1].split("\n\n")[0]
    assert "support.installed shell" in recipe
