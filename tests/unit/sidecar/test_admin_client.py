"""Where the token lies, and who may read it."""

import errno
import stat
from pathlib import Path

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.admin_client import new_token, read_token


def test_each_start_makes_up_another_that_its_owner_alone_may_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = {new_token(str(file)) for _ in range(3)}
    assert len(tokens) == 3
    assert min(len(token) for token in tokens) >= 40
    assert read_token(str(file)) in tokens
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"], "no draft is left"


def test_a_link_that_lies_there_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere, file = tmp_path / "elsewhere", tmp_path / "token"
    file.symlink_to(elsewhere)
    new_token(str(file))
    assert not elsewhere.exists()
    assert not file.is_symlink()


def test_without_a_file_there_is_none() -> None:
    assert new_token("") == ""


def test_a_file_that_cannot_be_written_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="TOKEN_FILE.*cannot be written"):
        new_token(str(tmp_path / "missing" / "token"))


def test_a_full_disk_is_left_as_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(InvalidInput, match="No space left"):
        new_token(str(tmp_path / "token"))
    assert not list(tmp_path.iterdir())
