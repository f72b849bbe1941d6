"""What is compiled in the sidecar's image: the same in what it does as its sources."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from compile_modules import CompileError, compile_modules, compiled_modules, has_compiler
from load_generator import cache_folder
from support.repository import ROOT
from support.served_example import serve_example

pytestmark = pytest.mark.timeout(1800)  # the first who needs them compiles them

COMMAND = (sys.executable, "-m", "batchedmodel_cli")
COMPILED = (
    "batchedmodel_scheduling.batching.policies",
    "batchedmodel_scheduling.batching.fifo",
    "batchedmodel_scheduling.batching.deadline",
    "batchedmodel_scheduling.batching.next_batch",
    "batchedmodel_http.connection",
    "batchedmodel_sidecar.batching.batcher",
    "batchedmodel_sidecar.batching.pending_request",
    "batchedmodel_sidecar.body.byte_budget",
    "batchedmodel_sidecar.http.inference",
    "batchedmodel_sidecar.protocols.v2",
)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of a process that imports compiled modules."""
    folder = compiled_modules(cache_folder(os.environ))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def test_what_runs_for_each_request_is_compiled(environment: dict[str, str]) -> None:
    assert len(_files(environment)) == 1


def test_a_manifest_is_served_by_compiled_processes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    serve_example(COMMAND, environment, tmp_path, compiled=True)


@pytest.mark.skipif(not has_compiler(), reason="there is no C compiler, or Python has no headers")
@pytest.mark.nightly
def test_a_wheel_has_them_and_serves_a_manifest(tmp_path: Path) -> None:
    asked = {**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "true"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    ended = _run(command, asked)
    assert ended.returncode == 0, ended.stdout
    (wheel,) = tmp_path.glob("*.whl")
    assert not wheel.name.endswith("-none-any.whl")
    installed = tmp_path / "installed"
    with ZipFile(wheel) as packed:
        packed.extractall(installed)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    assert _files(environment) == {str(installed)}
    serve_example(COMMAND, environment, tmp_path, compiled=True)


@pytest.mark.parametrize(
    "tests",
    [
        "tests/unit/scheduling",
        "tests/unit/http",
        pytest.param("tests/unit/sidecar", marks=pytest.mark.nightly),
        # A wheel has them for all processes.
        pytest.param("tests/unit/cli", marks=pytest.mark.nightly),
        pytest.param("tests/unit/model_server/link", marks=pytest.mark.nightly),
    ],
)
def test_compiled_modules_pass_the_tests_of_their_sources(
    environment: dict[str, str], request: pytest.FixtureRequest, tests: str
) -> None:
    # As many examples as in this run.
    nightly = f"--nightly={request.config.getoption('nightly')}"
    words = ["-q", "-p", "no:cacheprovider", "-m", "not interpreted", nightly]
    words.append(tests)
    ended = _run([sys.executable, "-m", "pytest", *words], environment)
    assert ended.returncode == 0, ended.stdout
    assert "passed" in ended.stdout


def test_what_does_not_compile_is_told_in_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("contract", "http", "scheduling", "sidecar"):
        (tmp_path / name / f"batchedmodel_{name}").mkdir(parents=True)
    wrong = tmp_path / "scheduling/batchedmodel_scheduling/batching/wrong.py"
    wrong.parent.mkdir()
    wrong.write_text('seconds: float = "much"\n')
    monkeypatch.setattr("compile_modules.ROOT", tmp_path)
    with pytest.raises(CompileError, match="wrong.py:1: error: Incompatible types"):
        compile_modules(tmp_path / "made")
    assert not (tmp_path / "made").exists()


def _run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _files(environment: dict[str, str]) -> set[str]:
    """The folders from which the compiled modules come."""
    program = (
        "import importlib, sys; [print(importlib.import_module(n).__file__) for n in sys.argv[1:]]"
    )
    told = _run([sys.executable, "-c", program, *COMPILED], environment).stdout.split()
    assert len(told) == len(COMPILED)
    assert all(name.endswith(".so") for name in told)
    return {name.split("/batchedmodel_")[0] for name in told}
