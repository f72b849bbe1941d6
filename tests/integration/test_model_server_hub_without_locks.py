"""Fetching onto a file system that has no locks: two processes would write into one folder."""

from pathlib import Path

from support.fetching import FILES, WITHOUT_LOCKS, ended, start, whole_folders
from support.model_server_hub import hub


async def test_nothing_is_fetched_and_the_reason_names_the_folder(tmp_path: Path) -> None:
    async with hub("us/small", FILES) as served:
        said = await ended(await start(tmp_path, served.endpoint, code=WITHOUT_LOCKS), 1)
    assert f"cannot be kept in {tmp_path / 'hub'}" in said
    assert "this file system has no locks" in said
    assert served.fetched == []
    assert whole_folders(tmp_path) == []
