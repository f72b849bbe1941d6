"""As much of a Hugging Face hub as downloading a snapshot needs, on ports of its own.

It speaks to the hub's own client as well, and a test holds it to that. Large files lie on a server
of their own, as they do in the world, and a test may let things go wrong.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_PAGE = 4
"""Entries in one part of a list of files: few, so that every list has several."""


@dataclass(kw_only=True)
class ServedHub:
    """One repository with one commit, known as `main`."""

    repo: str
    files: dict[str, bytes]
    commit: str = COMMIT
    endpoint: str = ""
    store: str = ""
    """Where large files lie."""
    token: str | None = None
    """Without it the repository is not to be seen."""
    gated: bool = False
    fetched: list[str] = field(default_factory=list)
    """Files that were asked for, one by one."""
    ranges: list[str] = field(default_factory=list)
    """What of a file was asked for, where that was not all."""
    authorized: dict[str, set[str | None]] = field(default_factory=dict)
    """The `Authorization` that each of the two servers saw."""

    cut_after: Counter[str] = field(default_factory=Counter)
    """By file: its next answer ends after so many bytes."""
    failures: list[int] = field(default_factory=list)
    """Statuses of the next answers, in turn."""
    damaged: Counter[str] = field(default_factory=Counter)
    """By file: how many of its next answers are wrong."""
    said_sizes: dict[str, int] = field(default_factory=dict)
    """By file: bytes that the list says it has, if not as many as it has."""
    ignores_ranges: bool = False
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Bodies of large files come once it is set, as it is at first."""
    held_apart: dict[str, asyncio.Event] = field(default_factory=dict)
    """By file: its body comes once this is set as well."""

    def __post_init__(self) -> None:
        self.held.set()

    async def info(self, request: web.Request) -> web.Response:
        """What commit a revision is."""
        self._see("hub", request)
        if not self._has(request, (self.commit, "main")):
            return self._absent(request)
        siblings = [{"rfilename": name} for name in self.files]
        return web.json_response({"id": self.repo, "sha": self.commit, "siblings": siblings})

    async def tree(self, request: web.Request) -> web.Response:
        """The files of a commit, part by part."""
        self._see("hub", request)
        if not self._has(request, (self.commit,)):
            return self._absent(request)
        start = int(request.query.get("cursor", 0))
        entries = [
            _entry(name, data, self.said_sizes.get(name, len(data)))
            for name, data in self.files.items()
        ]
        headers = {}
        if start + _PAGE < len(entries):
            rest = request.url.with_query(cursor=str(start + _PAGE))
            headers["Link"] = f'<{rest}>; rel="next"'
        return web.json_response(entries[start : start + _PAGE], headers=headers)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """One file, or with HEAD what the cache must know of it."""
        self._see("hub", request)
        if self.failures:
            return web.Response(status=self.failures.pop(0), headers={"Retry-After": "0"})
        path = request.match_info["path"]
        data = self.files.get(path)
        if data is None or not self._has(request, (self.commit, "main")):
            return self._absent(request)
        if self.gated:
            return web.Response(status=403, headers={"X-Error-Code": "GatedRepo"})
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{_git_name(data)}"'}
        if request.method == "GET":
            self.fetched.append(path)
        if not _is_large(path):
            return await self._body(request, path, data, headers)
        headers |= {
            "Location": f"{self.store}/{path}",
            "X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Linked-Size": str(len(data)),
        }
        return web.Response(status=302, headers=headers)

    async def stored(self, request: web.Request) -> web.StreamResponse:
        """A large file, on the other server."""
        self._see("store", request)
        path = request.match_info["path"]
        if path not in self.files:
            return web.Response(status=404)
        return await self._body(request, path, self.files[path], {})

    async def _body(
        self, request: web.Request, path: str, data: bytes, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        if self.damaged[path] > 0:
            self.damaged[path] -= 1
            data = bytes(len(data))
        asked, start = request.headers.get("Range", ""), 0
        if asked and not self.ignores_ranges:
            self.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            headers = {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        response.content_length = len(data) - start
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        if _is_large(path):
            await self.held.wait()
        if path in self.held_apart:
            await self.held_apart[path].wait()
        cut = self.cut_after.pop(path, None)
        if cut is None:
            await response.write(data[start:])
            return response
        await response.write(data[start : start + cut])
        # What was written must arrive before the connection is gone.
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    def _see(self, server: str, request: web.Request) -> None:
        self.authorized.setdefault(server, set()).add(request.headers.get("Authorization"))

    def _has(self, request: web.Request, revisions: tuple[str, ...]) -> bool:
        names = request.match_info
        known = f"{names['owner']}/{names['name']}" == self.repo and self._admits(request)
        return known and names["revision"] in revisions

    def _admits(self, request: web.Request) -> bool:
        return self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}"

    def _absent(self, request: web.Request) -> web.Response:
        names = request.match_info
        if not self._admits(request):
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        known = f"{names['owner']}/{names['name']}" == self.repo
        code = "RevisionNotFound" if known else "RepoNotFound"
        return web.Response(status=404, headers={"X-Error-Code": code})


@asynccontextmanager
async def hub(
    repo: str, files: Mapping[str, bytes], *, host: str = "127.0.0.1"
) -> AsyncIterator[ServedHub]:
    """A running hub."""
    served = ServedHub(repo=repo, files=dict(files))
    app, store = web.Application(), web.Application()
    api = "/api/models/{owner}/{name}"
    app.router.add_get(api + "/revision/{revision}", served.info)
    app.router.add_get(api + "/tree/{revision}", served.tree)
    app.router.add_get("/{owner}/{name}/resolve/{revision}/{path:.+}", served.file)
    store.router.add_get("/{path:.+}", served.stored)
    async with TestServer(app, host=host) as one, TestServer(store, host=host) as two:
        served.endpoint = str(one.make_url("")).rstrip("/")
        served.store = str(two.make_url("")).rstrip("/")
        yield served


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


def _entry(path: str, data: bytes, size: int) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": "file",
        "path": path,
        "size": size,
        "oid": _git_name(data),
    }
    if _is_large(path):
        digest = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 134}
    return entry


def _git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
