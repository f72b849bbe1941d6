"""The policies as they are in the sidecar's image: compiled, and the same in what they decide."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compile_policies import CompileError, compile_policies, compiled_policies
from load_generator import cache_folder
from support.repository import ROOT

DECIDING = ("policies", "queueing", "deadline.policy", "deadline.planning")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of a process that imports compiled policies."""
    folder = compiled_policies(cache_folder(os.environ))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def test_what_decides_is_compiled(environment: dict[str, str]) -> None:
    names = [f"batchedmodel_scheduling.{name}" for name in DECIDING]
    program = (
        "import importlib, sys; [print(importlib.import_module(n).__file__) for n in sys.argv[1:]]"
    )
    told = _run([sys.executable, "-c", program, *names], environment).stdout.split()
    assert len(told) == len(names)
    assert all(name.endswith(".so") for name in told)


def test_compiled_policies_pass_the_tests_of_policies(
    environment: dict[str, str], request: pytest.FixtureRequest
) -> None:
    # As many examples as in this run.
    nightly = f"--nightly={request.config.getoption('nightly')}"
    words = ["-q", "-p", "no:cacheprovider", "-m", "not interpreted", nightly]
    words.append("tests/unit/scheduling")
    ended = _run([sys.executable, "-m", "pytest", *words], environment)
    assert ended.returncode == 0, ended.stdout
    assert "passed" in ended.stdout


def test_what_does_not_compile_is_told_in_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("contract/batchedmodel_contract", "scheduling/batchedmodel_scheduling"):
        (tmp_path / package).mkdir(parents=True)
    wrong = tmp_path / "scheduling/batchedmodel_scheduling/wrong.py"
    wrong.write_text('seconds: float = "much"\n')
    monkeypatch.setattr("compile_policies.ROOT", tmp_path)
    with pytest.raises(CompileError, match="wrong.py:1: error: Incompatible types"):
        compile_policies(tmp_path / "made")
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
