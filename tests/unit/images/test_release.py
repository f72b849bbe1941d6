"""What a release would build, push and sign, and what the images hold, from recorded data."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import pytest

import release
from build_images import RECIPES, Recipe
from record_libraries import LIBRARIES
from support.foreign_environment import CannotMake, environment
from support.repository import ROOT

_RECORDED: Final[dict[str, Any]] = json.loads(LIBRARIES.read_text())
_PINS: Final = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
_DIGEST: Final = "sha256:" + "0" * 64


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_record_of_an_image_has_its_libraries_at_their_pins(recipe: Recipe) -> None:
    """Otherwise: `python images/record_libraries.py`."""
    pins = {_plain(name): version for name, version in _PINS.items()}
    held = {_plain(name): one for name, one in _RECORDED["images"][recipe.name].items()}
    assert held == {name: pins[name] for name in held}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][recipe.name]
    assert {_plain(re.split(r"[<>=~\[]", one)[0]) for one in wanted} <= set(held)


def test_every_library_of_an_image_is_pure_or_there_for_arm64() -> None:
    held = {name for image in _RECORDED["images"].values() for name in image}
    assert held == set(_RECORDED["wheels"])
    for name, wheel in _RECORDED["wheels"].items():
        assert wheel.endswith(".whl"), name
        platforms = wheel.removesuffix(".whl").rpartition("-")[2].split(".")
        assert "any" in platforms or any(one.endswith("_aarch64") for one in platforms), wheel


def test_no_dockerfile_names_an_architecture() -> None:
    for recipe in RECIPES:
        text = recipe.dockerfile.read_text()
        assert not re.search("amd64|x86_64|aarch64|arm64", text), recipe.name
        assert "org.opencontainers.image.title" in text


@pytest.fixture(scope="module")
def tool() -> Path:
    """The folder with cyclonedx-py."""
    try:
        return environment("cyclonedx").parent
    except CannotMake as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
def test_a_dry_run_lists_libraries_and_says_what_it_would_build_push_and_sign(
    tool: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", f"{tool}:/usr/bin:/bin")
    words = ["0.2.0", "--registry", "registry.test/bm", "--folder", str(tmp_path), "--dry-run"]
    assert release.main([*words, "--source", "https://sources.test"]) == 0
    plain, compiled, *said = map(shlex.split, capsys.readouterr().out.splitlines())
    assert (plain[0], compiled[0]) == (
        "HATCH_BUILD_HOOKS_ENABLE=false",
        "HATCH_BUILD_HOOKS_ENABLE=true",
    )
    assert plain[1:5] == compiled[1:5] == ["python3.13", "-m", "pip", "wheel"]
    assert [command[0] for command in said] == ["cyclonedx-py", "docker", "cosign", "cosign"] * 4
    for recipe, at in zip(RECIPES, range(0, 16, 4), strict=True):
        listed, built, signed, attested = said[at : at + 4]
        image = f"registry.test/bm/{recipe.name}"
        assert built[built.index("--platform") + 1] == "linux/amd64,linux/arm64"
        assert built[built.index("--tag") + 1] == f"{image}:0.2.0"
        assert {"--push", "--sbom=true", "--provenance=mode=max"} <= set(built)
        labels = dict(
            built[place + 1].split("=", 1) for place, word in enumerate(built) if word == "--label"
        )
        names = ("version", "revision", "created", "source")
        assert set(labels) == {f"org.opencontainers.image.{name}" for name in names}
        assert signed[-1] == attested[-1] == f"{image}@{_DIGEST}"
        assert attested[attested.index("--predicate") + 1] == listed[listed.index("-o") + 1]
        bill = json.loads((tmp_path / f"{recipe.name}.cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        held = {one["name"]: one["version"] for one in bill["components"]}
        assert held == _RECORDED["images"][recipe.name]


def test_a_release_needs_a_version_and_says_which_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--registry", "registry.test", "--folder", str(tmp_path), "--dry-run"]
    with pytest.raises(SystemExit):
        release.main(["latest", *words])
    assert "latest is no version" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert release.main(["0.2.0", *words]) == 1
    assert "cyclonedx-py" in capsys.readouterr().err


PLAIN = "batchedmodel-0.1.0-py3-none-any.whl"
COMPILED = "batchedmodel-0.1.0-cp313-cp313-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("name", "content", "compiled", "fault"),
    [
        (PLAIN, "batchedmodel_http/__init__.py", False, None),
        (COMPILED, "batchedmodel_http/connection.cpython-313-x86_64-linux-gnu.so", True, None),
        (PLAIN, "batchedmodel_http/connection.so", False, "1 compiled modules"),
        (COMPILED, "batchedmodel_http/__init__.py", True, "0 compiled modules"),
        (COMPILED, "batchedmodel_http/connection.so", False, "its tag is not py3-none-any"),
        (COMPILED.replace("313", "311"), "a.so", True, "its tag is not cp313-cp313-linux_x86_64"),
        ("batchedmodel-0.1.0.tar.gz", "a", False, "0 wheels instead of one"),
    ],
)
def test_a_wheel_of_another_form_than_its_name_is_not_released(
    name: str, content: str, compiled: bool, fault: str | None, tmp_path: Path
) -> None:
    with ZipFile(tmp_path / name, "w") as packed:
        packed.writestr(content, "")
    if fault is None:
        release.check_wheel(tmp_path, compiled=compiled)
        return
    with pytest.raises(release.ReleaseError, match=fault):
        release.check_wheel(tmp_path, compiled=compiled)
