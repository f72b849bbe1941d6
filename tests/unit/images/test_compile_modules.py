"""Where compiled modules are kept; the compiler is left out."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import compile_modules
from compile_modules import compiled_modules, main


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders into which something was compiled."""
    found: list[Path] = []

    def pretends(target: Path) -> None:
        target.mkdir()
        found.append(target)

    monkeypatch.setattr(compile_modules, "compile_modules", pretends)
    monkeypatch.setattr(compile_modules, "has_compiler", lambda: True)
    return found


def _sources(name: str) -> Callable[[], str]:
    return lambda: name


def test_the_same_sources_are_compiled_once(tmp_path: Path, made: list[Path]) -> None:
    assert compiled_modules(tmp_path / "cache") == compiled_modules(tmp_path / "cache")
    assert len(made) == 1


def test_the_forms_that_were_used_last_are_kept(
    tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        monkeypatch.setattr(compile_modules, "_digest", _sources(str(number)))
        kept = compiled_modules(tmp_path)
        os.utime(kept, (number, number))
    assert len(made) == 10
    names = sorted(path.name for path in tmp_path.glob("compiled-*"))
    assert names == [f"compiled-{number}" for number in range(2, 10)]


def test_what_was_broken_off_is_removed(tmp_path: Path, made: list[Path]) -> None:
    (tmp_path / ".compiled-before").mkdir()
    compiled_modules(tmp_path)
    assert not (tmp_path / ".compiled-before").exists()


def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, made: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([str(tmp_path / "file" / "cache"), "--kept"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "not compiled: " in told.err


def test_without_a_compiler_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_modules, "has_compiler", lambda: False)
    assert main([str(tmp_path), "--kept"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "there is no C compiler" in told.err


def test_what_was_kept_is_named_and_nothing_is_compiled_for_it(
    tmp_path: Path, made: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """`make run` compiled before it served, for minutes."""
    assert main([str(tmp_path), "--if-kept"]) == 0
    assert capsys.readouterr().out == ""
    assert made == []
    kept = compiled_modules(tmp_path)
    assert main([str(tmp_path), "--if-kept"]) == 0
    assert capsys.readouterr().out == str(kept)
