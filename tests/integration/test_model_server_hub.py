"""Fetching a model from a hub, which here is a small server of our own."""

import asyncio
import hashlib
import json
import os
import re
import resource
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchedmodel_contract.environment import FetchSettings, source_to_json, to_environment
from batchedmodel_contract.source import HuggingFace, Source
from batchedmodel_model_server.hub import Hub, HubAccess, Patience, Unreachable
from support.model_server_hub import COMMIT, ServedHub, hub

WEIGHTS = hashlib.sha256(b"weights").digest() * 100_000
FILES = {
    "config.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode": "cls"}',
    "vocab.txt": b"a\nb",
    "empty.txt": b"",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": b"for another runtime",
    "README.md": b"# Small",
}
WANTED = {"config.json", "1_Pooling/config.json", "vocab.txt", "empty.txt", "model.safetensors"}
ASKED_FOR = WANTED - {"empty.txt"}
CONTENT = {name: FILES[name] for name in WANTED}


@contextmanager
def limited_file_size(limit: int) -> Iterator[None]:
    """For processes started within: writing beyond it fails as on a full disk, by another errno."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
async def served() -> AsyncIterator[ServedHub]:
    async with hub("us/small", FILES) as running:
        yield running


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def whole_folders(cache: Path) -> list[Path]:
    """What a model server could be given: the folders that are not hidden."""
    return [
        path
        for path in cache.glob("hub/*/*")
        if path.is_dir() and not path.name.startswith(".") and path.name != "revisions"
    ]


async def start(
    cache: Path, endpoint: str, repo: str = "us/small", revision: str = "main", **environ: str
) -> Process:
    """The program that an init container runs."""
    source = Source(hugging_face=HuggingFace(repo=repo, revision=revision))
    settings = FetchSettings(
        source=source_to_json(source),
        cache_folder=str(cache),
        report_file=str(cache / "report"),
    )
    os.makedirs(cache, exist_ok=True)
    # A token of whoever runs the tests is nobody's business here.
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache / "home"), "HF_TOKEN": ""}
    variables = {**os.environ, **own, **to_environment(settings), **environ}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batchedmodel_model_server.fetch"), env=variables, stderr=PIPE
    )


async def ended(process: Process, expected: int) -> str:
    """What the program had to say."""
    _, output = await process.communicate()
    said = output.decode()
    assert process.returncode == expected, said
    return said


async def fetched(cache: Path, endpoint: str, **given: str) -> Path:
    """The folder that the program says it fetched."""
    said = await ended(await start(cache, endpoint, **given), 0)
    found = re.search(r"the model's files are in (.+)$", said, re.MULTILINE)
    assert found is not None, said
    return Path(found[1])


async def refused(cache: Path, endpoint: str, **given: str) -> str:
    """Why nothing could be fetched, which the program's report says as well."""
    said = await ended(await start(cache, endpoint, **given), 1)
    reason = (cache / "report").read_text().strip()
    assert reason in said
    assert whole_folders(cache) == []
    return reason


def part_of_weights(cache: Path) -> Path | None:
    return next(cache.rglob("model.safetensors.part"), None)


async def part_grows(cache: Path, beyond: int) -> Path:
    def grown() -> bool:
        part = part_of_weights(cache)
        return part is not None and part.stat().st_size > beyond

    await until(grown)
    part = part_of_weights(cache)
    assert part is not None
    return part


async def until(condition: Callable[[], bool]) -> None:
    """For what happens on a disk or in another process, and cannot be waited for otherwise."""
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


def is_asked_for_weights(served: ServedHub) -> bool:
    return "model.safetensors" in served.fetched


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
    assert f"model.safetensors came with a wrong checksum 2 times; the hub says {digest}" in reason


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
    """The hub's server stands for a proxy, which the other server is not reached by."""
    proxied = {"http_proxy": served.endpoint, "no_proxy": "127.0.0.1"}
    assert content(await fetched(tmp_path, "http://hub.example", **proxied)) == CONTENT


async def test_a_model_that_cannot_be_had_says_why(tmp_path: Path, served: ServedHub) -> None:
    absent = await refused(tmp_path, served.endpoint, repo="us/other")
    assert absent.startswith("source.huggingFace: us/other at main is not on the hub")
    assert "not to be seen without a token" in absent
    revision = await refused(tmp_path, served.endpoint, revision="v2")
    assert "us/small at v2 is not on the hub: the repository has no such revision" in revision
    served.token = "hf_secret"
    hidden = await refused(tmp_path, served.endpoint)
    assert "is not on the hub, or not to be seen without a token" in hidden
    wrong = await refused(tmp_path, served.endpoint, HF_TOKEN="hf_other")
    assert "is not on the hub, or not to be seen with this token" in wrong
    served.gated = True
    gated = await refused(tmp_path, served.endpoint, HF_TOKEN="hf_secret")
    assert "is gated: access has to be asked for on its page, and is not given with this" in gated


async def test_what_is_no_hub_is_told_so(tmp_path: Path, served: ServedHub) -> None:
    no_address = await refused(tmp_path, "hub.example")
    assert "HF_ENDPOINT: hub.example is not a URL such as https://huggingface.co" in no_address
    with_password = await refused(tmp_path, "https://me:secret@hub.example")
    assert "HF_ENDPOINT: names a user" in with_password
    assert "secret" not in with_password
    no_hub = await refused(tmp_path, served.store)
    assert "source.huggingFace: us/small at main is not on the hub" in no_hub


async def test_files_of_other_kinds_are_no_model(tmp_path: Path, served: ServedHub) -> None:
    served.files = {"pytorch_model.bin": b"a pickle"}
    reason = await refused(tmp_path, served.endpoint)
    assert "has no file like *.safetensors, *.json, *.txt" in reason


async def test_no_file_is_written_outside_of_the_folder(tmp_path: Path, served: ServedHub) -> None:
    served.files["../../stray.json"] = b"{}"
    reason = await refused(tmp_path / "cache", served.endpoint)
    assert "../../stray.json would lie outside of its folder" in reason
    assert not any(name.endswith("stray.json") for name in content(tmp_path))


async def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, served: ServedHub) -> None:
    (tmp_path / "hub").write_text("in the way")
    assert f"cannot be kept in {tmp_path}/hub" in await refused(tmp_path, served.endpoint)


async def test_files_that_have_no_room_are_not_begun(tmp_path: Path, served: ServedHub) -> None:
    served.said_sizes["model.safetensors"] = 10**15
    reason = await refused(tmp_path, served.endpoint)
    assert "there is no space for the files: 1000.0 TB more are needed, and " in reason
    assert served.fetched == []


async def test_a_disk_that_fills_up_is_told(tmp_path: Path, served: ServedHub) -> None:
    with limited_file_size(1_000_000):
        reason = await refused(tmp_path, served.endpoint)
    assert f"source.huggingFace: us/small at main cannot be kept in {tmp_path}/hub: " in reason
    assert "File too large" in reason


async def test_a_hub_that_stays_away_is_given_up(tmp_path: Path, served: ServedHub) -> None:
    served.cut_after["model.safetensors"] = 1_000_000
    patience = Patience(tries=3, first_pause_seconds=0.01)
    access = HubAccess(endpoint=served.endpoint, token=None, patience=patience)
    async with Hub(access, "us/small", "main") as asked:
        (file,) = [one for one in await asked.files(COMMIT) if one.path == "model.safetensors"]
        served.failures = [503] * 2
        counted: list[int] = []
        into = tmp_path / "weights"
        await asked.download(COMMIT, file, into, counted.append)
        assert sum(counted) == len(WEIGHTS)

        served.failures = [503] * 3
        with pytest.raises(Unreachable, match="us/small at main could not be .* tried 3 times"):
            await asked.download(COMMIT, file, tmp_path / "other", counted.append)


async def test_a_connection_that_falls_silent_is_given_up(
    tmp_path: Path, served: ServedHub
) -> None:
    served.held.clear()
    patience = Patience(tries=2, first_pause_seconds=0.01, silence_seconds=0.2)
    access = HubAccess(endpoint=served.endpoint, token=None, patience=patience)
    async with Hub(access, "us/small", "main") as asked:
        (file,) = [one for one in await asked.files(COMMIT) if one.path == "model.safetensors"]
        with pytest.raises(Unreachable):
            await asked.download(COMMIT, file, tmp_path / "weights", lambda _: None)
    served.held.set()


async def test_the_hubs_own_client_finds_the_same_files(tmp_path: Path, served: ServedHub) -> None:
    """What the hub of these tests says is what a hub says."""
    script = (
        "import json, sys; from huggingface_hub import snapshot_download; "
        "print(json.dumps(snapshot_download('us/small', cache_dir=sys.argv[1], "
        "allow_patterns=['*.safetensors', '*.json', '*.txt'])))"
    )
    served.token = "hf_secret"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(tmp_path / "theirs")),
        env={**os.environ, "HF_ENDPOINT": served.endpoint, "HF_TOKEN": "hf_secret"},
        stdout=PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    ours = await fetched(tmp_path / "ours", served.endpoint, HF_TOKEN="hf_secret")
    assert content(Path(json.loads(output))) == content(ours)


async def test_wrong_settings_are_told(tmp_path: Path) -> None:
    process = await start(tmp_path, "http://hub.example", BATCHEDMODEL_SOURCE="")
    assert "BATCHEDMODEL_SOURCE: is required" in await ended(process, 2)
