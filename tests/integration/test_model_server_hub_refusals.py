"""A hub that does not give what a model needs, and folders that do not take it."""

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from batchedmodel_model_server.sources.hub import Hub, HubAccess, Patience, Unreachable
from support.fetching import WEIGHTS, content, ended, fetched, limited_file_size, refused, start
from support.model_server_hub import COMMIT, ServedHub


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
    assert '"../../stray.json" would lie outside of its folder' in reason
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


async def test_hub_that_lies_is_told_of_in_the_report(tmp_path: Path) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"[" * 1_000_000)
        return response

    async def deep(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"[" * 1_000_000)

    async def nowhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "http://[::"})

    async def to_a_file(request: web.Request) -> web.StreamResponse:
        return web.json_response([], headers={"Link": '<file:///etc/passwd>; rel="next"'})

    reasons = {
        to_a_file: "source.huggingFace: us/small at main: the hub leads nowhere",
        endless: "127.0.0.1 answers more than 16777216 bytes of JSON",
        deep: "127.0.0.1 does not answer as a hub does",
        nowhere: "source.huggingFace: us/small at main: the hub leads nowhere",
    }
    for answer, reason in reasons.items():
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with TestServer(app) as server:
            endpoint = str(server.make_url("")).rstrip("/")
            assert await refused(tmp_path / answer.__name__, endpoint) == reason


FAILING = """
import sys
from batchedmodel_model_server.sources import fetch

def model_folder(*_, **__):
    raise RuntimeError("nobody thought of this")

fetch.model_folder = model_folder
sys.exit(fetch.main())
"""


async def test_what_nobody_thought_of_is_in_the_report_as_well(
    tmp_path: Path, served: ServedHub
) -> None:
    reason = await refused(tmp_path, served.endpoint, code=FAILING)
    assert reason == "fetching failed: RuntimeError: nobody thought of this"
