"""Where a model's files come from; the hub has a test of its own, with a server."""

from collections.abc import Callable
from pathlib import Path

import pytest

from batchedmodel_contract.manifest.source import Source
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.folder import content_of, model_folder

MakePackage = Callable[[str, str], Path]


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePackage:
    """Puts a package with the given `__init__` on the path; returns its folder."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, code: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(code)
        return folder

    return make


def test_no_source_is_no_folder(tmp_path: Path) -> None:
    assert model_folder(None, tmp_path) is None


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert model_folder(Source(path=str(tmp_path)), tmp_path) == tmp_path


def test_a_package_may_say_where_its_files_are(make_package: MakePackage, tmp_path: Path) -> None:
    make_package("carries_by_function", f"def get_model_path(): return {str(tmp_path)!r}")
    source = Source(python_package="carries_by_function")
    assert model_folder(source, tmp_path) == tmp_path


def test_a_package_may_be_the_folder_itself(make_package: MakePackage, tmp_path: Path) -> None:
    folder = make_package("carries_by_itself", "")
    (folder / "config.json").touch()
    assert model_folder(Source(python_package="carries_by_itself"), tmp_path) == folder


def test_a_package_with_a_gguf_file_is_not_imported(
    make_package: MakePackage, tmp_path: Path
) -> None:
    """Such as one made for another engine, which is not installed."""
    folder = make_package("carries_gguf", "import an_engine_that_is_not_there")
    (folder / "model.gguf").touch()
    assert model_folder(Source(python_package="carries_gguf"), tmp_path) == folder


def test_a_gguf_file_may_be_the_source_and_changes_with_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with pytest.raises(CannotLoad, match="is not a folder"):
        model_folder(Source(path=str(file)), tmp_path)
    file.write_bytes(b"GGUF")
    before = content_of(Source(path=str(file)), tmp_path)
    assert (before.folder, before.number, before.stays) == (file, None, False)
    assert content_of(Source(path=str(file)), tmp_path) == before
    file.write_bytes(b"GGUF2")
    assert content_of(Source(path=str(file)), tmp_path).digest != before.digest
    (tmp_path / "model.bin").touch()
    with pytest.raises(CannotLoad, match="is not a folder"):
        model_folder(Source(path=str(tmp_path / "model.bin")), tmp_path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "has neither get_model_path"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("def get_model_path(): return '/no/such'", "/no/such is not a folder"),
        ("def get_model_path(): return None", "get_model_path.. failed"),
    ],
    ids=["no files", "broken", "wrong path", "no path"],
)
def test_a_package_without_files_is_refused(
    make_package: MakePackage, tmp_path: Path, code: str, message: str
) -> None:
    name = f"broken_{tmp_path.name}"
    make_package(name, code)
    with pytest.raises(CannotLoad, match=f"source.pythonPackage: .*{message}"):
        model_folder(Source(python_package=name), tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Source(path="/no/such"), "source.path: /no/such is not a folder"),
        (Source(python_package="no_such_package"), "no_such_package cannot be imported"),
        (Source(), "names neither path nor pythonPackage nor huggingFace"),
    ],
    ids=["path", "package", "nothing"],
)
def test_a_source_that_is_not_there_is_refused(
    source: Source, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CannotLoad, match=message):
        model_folder(source, tmp_path)
