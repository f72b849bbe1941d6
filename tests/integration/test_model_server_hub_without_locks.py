"""Fetching onto a file system that has no locks: twice the work, and never a half of it."""

import asyncio
import signal
from pathlib import Path

from support.fetching import (
    FILES,
    WITHOUT_LOCKS,
    content,
    ended,
    part_grows,
    start,
    until,
    whole_folders,
)
from support.model_server_hub import hub

MORE = "more.safetensors"


def hidden_folders(cache: Path) -> list[Path]:
    return [path for path in cache.glob("hub/*/.*") if path.is_dir()]


async def test_two_that_fetch_at_once_both_find_it_whole(tmp_path: Path) -> None:
    async with hub("us/small", {**FILES, MORE: b"more" * 1000}) as served:
        served.held.clear()
        served.held_apart[MORE] = asyncio.Event()
        both = [await start(tmp_path, served.endpoint, code=WITHOUT_LOCKS) for _ in range(2)]
        await until(lambda: served.fetched.count("model.safetensors") == 2)
        # Each has its weights complete and checked while neither has everything.
        served.held.set()
        await until(lambda: len(list(tmp_path.rglob("model.safetensors"))) == 2)
        served.held_apart[MORE].set()
        said = await asyncio.gather(*(ended(process, 0) for process in both))
    assert all("this file system has no locks" in each for each in said)
    (folder,) = whole_folders(tmp_path)
    assert content(folder)["model.safetensors"] == FILES["model.safetensors"]
    assert hidden_folders(tmp_path) == []


async def test_what_a_killed_process_left_is_removed_by_whoever_fetches_it_all(
    tmp_path: Path,
) -> None:
    async with hub("us/small", FILES) as served:
        served.cut_after["model.safetensors"] = 1_000_000
        first = await start(tmp_path, served.endpoint, code=WITHOUT_LOCKS)
        await part_grows(tmp_path, 500_000)
        first.kill()
        await ended(first, -signal.SIGKILL)
        assert len(hidden_folders(tmp_path)) == 1
        await ended(await start(tmp_path, served.endpoint, code=WITHOUT_LOCKS), 0)
    assert len(whole_folders(tmp_path)) == 1
    assert hidden_folders(tmp_path) == []
