"""Fetching a model from a hub, which here is a small server of our own."""

import asyncio
import hashlib
import signal
from pathlib import Path

import pytest

from support.fetching import (
    ASKED_FOR,
    CONTENT,
    FILES,
    WEIGHTS,
    content,
    ended,
    fetched,
    is_asked_for_weights,
    part_grows,
    refused,
    start,
    until,
    whole_folders,
)
from support.model_server_hub import COMMIT, ServedHub, hub


async def test_only_what_a_model_needs_is_fetched_and_kept(
    tmp_path: Path, served: ServedHub
) -> None:
    folder = await fetched(tmp_path, served.endpoint)
    assert content(folder) == CONTENT
    assert set(served.fetched) == ASKED_FOR
    assert tmp_path in folder.parents
    assert folder.name.startswith(COMMIT)

    served.fetched.clear()
    assert await fetched(tmp_path, served.endpoint) == folder
    assert served.fetched == []


async def test_what_was_fetched_is_served_without_a_hub(tmp_path: Path) -> None:
    async with hub("us/small", FILES) as served:
        endpoint = served.endpoint
        folder = await fetched(tmp_path, endpoint)
    assert await fetched(tmp_path, endpoint, HF_HUB_OFFLINE="1") == folder
    assert await fetched(tmp_path, endpoint, revision=COMMIT, HF_HUB_OFFLINE="1") == folder
    # A whole commit is never asked for again; a branch is, and its last state does if that fails.
    assert await fetched(tmp_path, endpoint, revision=COMMIT) == folder
    said = await ended(await start(tmp_path, endpoint), 0)
    assert "going on with what was fetched before" in said


async def test_offline_nothing_is_asked_for(tmp_path: Path, served: ServedHub) -> None:
    reason = await refused(tmp_path, served.endpoint, HF_HUB_OFFLINE="1")
    assert f"us/small at main is not in {tmp_path}/hub, and offline no hub is asked" in reason
    assert served.authorized == {}


async def test_a_branch_is_followed_and_a_commit_is_not(tmp_path: Path, served: ServedHub) -> None:
    await fetched(tmp_path, served.endpoint)
    served.commit = "f" * 40
    served.files["vocab.txt"] = b"c"
    later = await fetched(tmp_path, served.endpoint)
    assert later.name.startswith("f" * 40)
    assert content(later)["vocab.txt"] == b"c"
    pinned = await fetched(tmp_path, served.endpoint, revision=COMMIT)
    assert content(pinned)["vocab.txt"] == b"a\nb"


async def test_a_fetch_that_was_ended_goes_on_where_it_was(
    tmp_path: Path, served: ServedHub
) -> None:
    served.cut_after["model.safetensors"] = 1_000_000
    first = await start(tmp_path, served.endpoint)
    part = await part_grows(tmp_path, 500_000)
    # The connection breaks, and the program is told to end before it can try again.
    first.send_signal(signal.SIGTERM)
    await ended(first, 128 + signal.SIGTERM)
    assert whole_folders(tmp_path) == []
    there = part.stat().st_size

    served.fetched.clear()
    served.ranges.clear()
    folder = await fetched(tmp_path, served.endpoint)
    assert content(folder) == CONTENT
    assert served.ranges == [f"bytes={there}-"]
    assert served.fetched == ["model.safetensors"], "what was complete is not fetched again"


async def test_a_fetch_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, served: ServedHub
) -> None:
    served.cut_after["model.safetensors"] = 2_000_000
    first = await start(tmp_path, served.endpoint)
    await part_grows(tmp_path, 1_000_000)
    first.kill()
    await ended(first, -signal.SIGKILL)
    assert whole_folders(tmp_path) == []
    assert content(await fetched(tmp_path, served.endpoint)) == CONTENT
    assert len(served.ranges) >= 1


async def test_a_broken_connection_is_resumed_by_the_same_process(
    tmp_path: Path, served: ServedHub
) -> None:
    served.cut_after["model.safetensors"] = 1_500_000
    process = await start(tmp_path, served.endpoint)
    said = await ended(process, 0)
    assert "trying again in 1 s" in said
    (asked,) = served.ranges
    assert 0 < int(asked.removeprefix("bytes=").removesuffix("-")) <= 1_500_000
    (folder,) = whole_folders(tmp_path)
    assert content(folder) == CONTENT


async def test_a_server_that_knows_no_ranges_sends_all_again(
    tmp_path: Path, served: ServedHub
) -> None:
    served.ignores_ranges = True
    served.cut_after["model.safetensors"] = 1_500_000
    assert content(await fetched(tmp_path, served.endpoint)) == CONTENT
    assert served.fetched.count("model.safetensors") == 2


async def test_a_hub_that_is_busy_is_asked_again(tmp_path: Path, served: ServedHub) -> None:
    served.failures = [503, 429]
    assert content(await fetched(tmp_path, served.endpoint)) == CONTENT


async def test_progress_is_told(tmp_path: Path, served: ServedHub) -> None:
    said = await ended(await start(tmp_path, served.endpoint), 0)
    assert f"fetching source.huggingFace: us/small at main, commit {COMMIT}" in said
    assert "5 files, 0 bytes of 3.2 MB (0 %)" in said
    assert "complete: 3.2 MB of 3.2 MB (100 %)" in said


@pytest.mark.parametrize("name", ["model.safetensors", "1_Pooling/config.json"])
async def test_a_file_with_a_wrong_checksum_is_fetched_once_more(
    tmp_path: Path, served: ServedHub, name: str
) -> None:
    served.damaged[name] = 1
    said = await ended(await start(tmp_path, served.endpoint), 0)
    assert f"{name} has digest" in said
    (folder,) = whole_folders(tmp_path)
    assert content(folder) == CONTENT


async def test_a_file_whose_checksum_stays_wrong_is_never_served(
    tmp_path: Path, served: ServedHub
) -> None:
    served.damaged["model.safetensors"] = 100
    reason = await refused(tmp_path, served.endpoint)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    told = f'model.safetensors came with a wrong checksum 2 times; the hub says "{digest}"'
    assert told in reason


async def test_a_part_that_was_damaged_on_the_disk_is_found_out(
    tmp_path: Path, served: ServedHub
) -> None:
    served.cut_after["model.safetensors"] = 1_000_000
    first = await start(tmp_path, served.endpoint)
    part = await part_grows(tmp_path, 500_000)
    first.kill()
    await ended(first, -signal.SIGKILL)
    with part.open("r+b") as file:
        file.write(b"damage")
    assert content(await fetched(tmp_path, served.endpoint)) == CONTENT


async def test_two_that_fetch_at_once_do_it_once(tmp_path: Path, served: ServedHub) -> None:
    served.held.clear()
    first = await start(tmp_path, served.endpoint)
    await until(lambda: is_asked_for_weights(served))
    second = await start(tmp_path, served.endpoint)
    assert second.stderr is not None
    waiting = b""
    while b"waiting for it" not in waiting:
        waiting = await asyncio.wait_for(second.stderr.readline(), 20)
    served.held.set()
    await asyncio.gather(ended(first, 0), ended(second, 0))
    (folder,) = whole_folders(tmp_path)
    assert content(folder) == CONTENT
    assert sorted(served.fetched) == sorted(ASKED_FOR)


async def test_who_waits_takes_over_when_the_first_dies(tmp_path: Path, served: ServedHub) -> None:
    served.held.clear()
    first = await start(tmp_path, served.endpoint)
    await until(lambda: is_asked_for_weights(served))
    second = await start(tmp_path, served.endpoint)
    first.kill()
    await ended(first, -signal.SIGKILL)
    served.held.set()
    await ended(second, 0)
    (folder,) = whole_folders(tmp_path)
    assert content(folder) == CONTENT


async def test_the_token_is_shown_to_the_hub_and_to_nobody_else(
    tmp_path: Path, served: ServedHub
) -> None:
    served.token = "hf_secret"
    process = await start(tmp_path, served.endpoint, HF_TOKEN="hf_secret")
    said = await ended(process, 0)
    assert served.authorized == {"hub": {"Bearer hf_secret"}, "store": {None}}
    assert "hf_secret" not in said


async def test_no_password_file_gets_between_the_token_and_the_hub(
    tmp_path: Path, served: ServedHub
) -> None:
    served.token = "hf_secret"
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login me password mine\n")
    await fetched(tmp_path, served.endpoint, HF_TOKEN="hf_secret", NETRC=str(passwords))
    assert served.authorized == {"hub": {"Bearer hf_secret"}, "store": {None}}


async def test_the_proxy_of_the_environment_is_used_where_it_should_be(
    tmp_path: Path, served: ServedHub
) -> None:
    """The hub's server stands for a proxy, which the other server is not reached by.

    Python's own rule knows no networks, so models were fetched otherwise than API servers reached.
    """
    proxied = {"http_proxy": served.endpoint, "no_proxy": "127.0.0.0/8"}
    assert content(await fetched(tmp_path, "http://hub.example", **proxied)) == CONTENT
