"""The built wheel in fresh environments: it serves, or says in one sentence what it lacks."""

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from support.foreign_environment import plain_variables
from support.repository import ROOT
from support.served_example import serve_example

SIMULATED = str(ROOT / "examples/simulated.yaml")
PROFILE = f"--profile={ROOT / 'examples/simulated-profile.json'}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As anyone builds it who asks for nothing."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs where the wheel was installed and no extra."""
    return _installed(wheel, tmp_path_factory.mktemp("bare"), "--constraint=constraints.txt")


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the libraries of the present environment, but not its project."""
    folder = tmp_path_factory.mktemp("full")
    programs = _installed(wheel, folder, "--no-deps")
    (packages,) = folder.glob("lib/python*/site-packages")
    present = [path for path in sys.path if path.endswith("-packages")]
    # The folders alone: `.pth` files in them, which name the sources, are not read.
    (packages / "present.pth").write_text("\n".join(present) + "\n")
    return programs


def _installed(wheel: Path, folder: Path, *options: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", f"--python={folder}/bin/python", "install", "--quiet"]
    subprocess.run(
        [*pip, *options, str(wheel)], cwd=ROOT, env=_variables(), check=True, timeout=180
    )
    return folder / "bin"


def _variables() -> dict[str, str]:
    """Of a process that finds no other program and nothing of the sources."""
    return {**plain_variables(), "PATH": "/nowhere", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _says(programs: Path, *words: str) -> tuple[int, str, str]:
    ran = subprocess.run(
        [str(programs / "batchedmodel"), *words],
        cwd=programs,
        env=_variables(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_a_wheel_is_plain_python_unless_a_compiled_one_is_asked_for(wheel: Path) -> None:
    """`pip install` of the sources ran a compiler for minutes."""
    assert wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as packed:
        names = packed.namelist()
    assert not [name for name in names if name.endswith(".so")]
    assert "batchedmodel_sidecar/batching/batcher.py" in names


def test_the_plain_wheel_in_an_environment_of_its_own_serves(full: Path, tmp_path: Path) -> None:
    """A folder of the sources that is not packed would be missing here."""
    where = _says(full, "--version")
    assert where[0] == 0, where
    place = "import batchedmodel_sidecar as s; print(s.__file__)"
    ran = [str(full / "python"), "-c", place]
    assert str(full.parent) in subprocess.check_output(ran, text=True, env=_variables(), cwd=full)
    serve_example([str(full / "batchedmodel")], _variables(), tmp_path, compiled=False)


@pytest.mark.parametrize(
    "words",
    [
        ("run", SIMULATED),
        ("run", str(ROOT / "examples/minilm.yaml")),
        ("run", str(ROOT / "examples/llama-cpp.yaml"), "--upstream=http://127.0.0.1:8080"),
        ("simulate", SIMULATED, PROFILE, "--rate=100"),
    ],
    ids=lambda words: f"{words[0]} {Path(words[1]).stem}",
)
def test_what_a_subcommand_lacks_is_one_sentence_with_the_line_to_type(
    bare: Path, words: tuple[str, ...]
) -> None:
    """They ended in a traceback, `No module named 'yaml'`, or named what was in no extra."""
    code, output, said = _says(bare, *words)
    assert (code, output) == (2, ""), said
    (line,) = said.splitlines()
    pattern = r".*: not installed: .*\bnumpy\b.*; try: pip install 'batchedmodel\[serve\]'"
    assert re.fullmatch(pattern, line), line


def test_what_needs_no_extra_works_without_one(bare: Path) -> None:
    """Help, versions, and the comparison of manifests; of upgrades only kubectl is missing."""
    assert _says(bare, "--help")[0] == 0
    for name in ("run", "simulate", "diff", "upgrades"):
        assert _says(bare, name, "--help")[0] == 0
    (bare / "live.yaml").write_text(Path(SIMULATED).read_text())
    code, output, said = _says(bare, "diff", SIMULATED, "--live=live.yaml")
    assert (code, said) == (0, ""), output
    code, _, said = _says(bare, "upgrades", "--sidecar-image=new")
    assert code == 2
    assert said.startswith("kubectl is not installed")


def test_every_extra_that_people_are_told_is_one_of_the_wheel(wheel: Path) -> None:
    with ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith("/METADATA"))
        text = packed.read(name).decode()
    assert {"serve", "kubernetes", "dev"} <= set(re.findall(r"^Provides-Extra: (.+)$", text, re.M))
