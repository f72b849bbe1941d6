"""As much of a Hugging Face hub as downloading a snapshot needs, on a loopback port."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(kw_only=True)
class Hub:
    """One repository with one commit, known as `main`."""

    repo: str
    files: Mapping[str, bytes]
    endpoint: str = ""
    fetched: list[str] = field(default_factory=list)

    async def info(self, request: web.Request) -> web.Response:
        """What commit a revision is."""
        if not self._has(request, (COMMIT, "main")):
            return self._absent(request)
        siblings = [{"rfilename": name} for name in self.files]
        return web.json_response({"id": self.repo, "sha": COMMIT, "siblings": siblings})

    async def tree(self, request: web.Request) -> web.Response:
        """The files of a commit."""
        if not self._has(request, (COMMIT, "main")):
            return self._absent(request)
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
            for name, data in self.files.items()
        ]
        return web.json_response(entries)

    async def file(self, request: web.Request) -> web.Response:
        """One file, or with HEAD what the cache must know of it."""
        data = self.files.get(request.match_info["path"])
        if data is None or not self._has(request, (COMMIT, "main")):
            return self._absent(request)
        if request.method == "GET":
            self.fetched.append(request.match_info["path"])
        return web.Response(
            body=data, headers={"X-Repo-Commit": COMMIT, "ETag": f'"{_etag(data)}"'}
        )

    def _has(self, request: web.Request, revisions: tuple[str, ...]) -> bool:
        names = request.match_info
        return f"{names['owner']}/{names['name']}" == self.repo and names["revision"] in revisions

    def _absent(self, request: web.Request) -> web.Response:
        names = request.match_info
        known = f"{names['owner']}/{names['name']}" == self.repo
        code = "RevisionNotFound" if known else "RepoNotFound"
        return web.Response(status=404, headers={"X-Error-Code": code})


@asynccontextmanager
async def hub(repo: str, files: Mapping[str, bytes]) -> AsyncIterator[Hub]:
    """A running hub."""
    served = Hub(repo=repo, files=files)
    app = web.Application()
    api = "/api/models/{owner}/{name}"
    app.router.add_get(api + "/revision/{revision}", served.info)
    app.router.add_get(api + "/tree/{revision}", served.tree)
    app.router.add_get("/{owner}/{name}/resolve/{revision}/{path:.+}", served.file)
    async with TestServer(app, host="127.0.0.1") as server:
        served.endpoint = str(server.make_url("")).rstrip("/")
        yield served


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
