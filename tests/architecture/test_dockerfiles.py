"""Dockerfiles can be built in the repository's root, by whichever builder reads `.dockerignore`."""

from pathlib import Path, PurePosixPath

import pytest

from image_content import copied_paths
from support.repository import ROOT

DOCKERFILES = sorted(ROOT.glob("*/Dockerfile"))


def shown() -> set[str]:
    """What a build may see: all is left out that is not named."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_there_are_dockerfiles() -> None:
    assert len(DOCKERFILES) == 4


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_what_a_dockerfile_copies_is_not_kept_from_its_build(dockerfile: Path) -> None:
    copied = copied_paths(dockerfile.read_text(encoding="utf-8"))
    assert {PurePosixPath(path).parts[0] for path in copied} - shown() == set()


def test_what_a_build_may_see_is_there() -> None:
    assert [name for name in shown() if not (ROOT / name).exists()] == []
