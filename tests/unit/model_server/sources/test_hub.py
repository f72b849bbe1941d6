"""A hub that lies: what it says is bounded before anything is done with it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.folder import wanted_files
from batchedmodel_model_server.sources.hub import (
    MOST_ANSWER_BYTES,
    MOST_ENTRIES,
    Hub,
    HubAccess,
    HubFile,
    Patience,
    Unreachable,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOLDER = {"type": "directory", "path": "d", "oid": "x", "size": 0}
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def file(**parts: object) -> dict[str, object]:
    return {"type": "file", "path": "config.json", "size": 2, "oid": "x", **parts}


def listing(page: object) -> Answer:
    """A hub that has one page."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(page)

    return answer


async def asked(answer: Answer, **patience: Any) -> Any:
    """What `Hub` makes of a hub that answers everything like this: its files."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        endpoint = str(server.make_url("")).rstrip("/")
        allowed = Patience(tries=1, first_pause_seconds=0.01, **patience)
        async with Hub(HubAccess(endpoint=endpoint, token=None, patience=allowed), "a/b", "c") as h:
            return await h.files(COMMIT)


async def test_answer_without_end_is_given_up_at_its_bound() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 1_000_000)
                sent += 1_000_000
        except ConnectionError:
            return response

    with pytest.raises(CannotLoad, match=f"answers more than {MOST_ANSWER_BYTES} bytes of JSON"):
        await asked(endless)
    assert sent < 4 * MOST_ANSWER_BYTES


async def test_answer_that_comes_byte_by_byte_has_one_deadline_over_all_of_it() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.02)
        except ConnectionError:
            return response

    with pytest.raises(Unreachable, match=r"did not answer within 0\.2 s"):
        await asked(slow, answer_seconds=0.2, silence_seconds=5.0)


async def test_pages_that_lead_to_each_other_end() -> None:
    pages = 0

    async def again(request: web.Request) -> web.StreamResponse:
        nonlocal pages
        pages += 1
        page = [FOLDER] * 1_000
        return web.json_response(page, headers={"Link": f'<{request.url}>; rel="next"'})

    with pytest.raises(CannotLoad, match=f"a/b at c has more than {MOST_ENTRIES} files"):
        await asked(again)
    assert pages == MOST_ENTRIES // 1_000 + 1


async def test_list_that_goes_on_slowly_has_one_deadline_over_all_of_it() -> None:
    async def again(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return web.json_response([FOLDER], headers={"Link": f'<{request.url}>; rel="next"'})

    with pytest.raises(Unreachable, match=r"list of files did not end within 0\.2 s"):
        await asked(again, listing_seconds=0.2)


@pytest.mark.parametrize(
    "location", ["http://[", "https://x:99999999/", "//\\\\", "ftp://elsewhere/", "?again"]
)
async def test_redirects_that_lead_nowhere_or_in_circles_are_refused(location: str) -> None:
    async def led(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": location})

    with pytest.raises(CannotLoad, match="the hub leads (nowhere|in circles)|could not be fetched"):
        await asked(led)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff\xfe", b"", b"[7]", b"{}", b"null"])
async def test_what_is_no_list_of_files_is_refused(text: bytes) -> None:
    async def nonsense(request: web.Request) -> web.StreamResponse:
        return web.Response(body=text, content_type="application/json", charset="no-such")

    with pytest.raises(CannotLoad, match="as a hub does|makes no sense"):
        await asked(nonsense)


@pytest.mark.parametrize(
    "entry",
    [
        file(size=-1),
        file(size=2**60),
        file(size=1.5),
        file(size=float("inf")),
        file(size="2"),
        file(size=True),
        file(path=7),
        file(path=None),
        file(oid=7),
        file(lfs=7),
        file(lfs={"oid": 7}),
        {"type": "file"},
        7,
    ],
)
async def test_file_that_can_be_none_is_refused(entry: object) -> None:
    with pytest.raises(CannotLoad, match="the hub's list of files makes no sense"):
        await asked(listing([entry]))


async def test_folders_count_as_entries() -> None:
    assert await asked(listing([FOLDER] * MOST_ENTRIES)) == []
    with pytest.raises(CannotLoad, match=f"a/b at c has more than {MOST_ENTRIES} files"):
        await asked(listing([FOLDER] * (MOST_ENTRIES + 1)))


@pytest.mark.parametrize(
    "path",
    [
        "../x.json",
        "/etc/x.json",
        "a/../../x.json",
        "a/\0.json",
        "a\n.json",
        "a" * 2000 + ".json",
    ],
)
def test_file_that_would_lie_elsewhere_is_refused_by_name(path: str) -> None:
    lying = HubFile(path=path, size=1, sha256=None, git_sha1="x")
    with pytest.raises(CannotLoad, match="would lie outside of its folder") as refused:
        wanted_files([lying], ["*.json"])
    assert json.dumps(path)[:50] in str(refused.value)


def test_file_that_is_listed_twice_is_refused() -> None:
    one = HubFile(path="x.json", size=1, sha256=None, git_sha1="x")
    with pytest.raises(CannotLoad, match="lists a file twice"):
        wanted_files([one, one], ["*.json"])
