"""The protocol of a Hugging Face hub, as far as fetching the files of one commit needs it.

The only module that talks to a hub. A hub may be anybody's, and lie: what it says is bounded by
bytes, entries and pages before anything is done with it. Why not by the hub's own library:
`docs/adr/0008-files-of-a-hub-are-fetched-by-ourselves.md`.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from batchedmodel_contract.processes.proxy import proxy_to
from batchedmodel_model_server.errors import CannotLoad

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
"""What the full name of a commit looks like."""

_HOME: Final = "https://huggingface.co"
_SAID_CHARACTERS: Final = 200
_ASK_AGAIN: Final = frozenset({408, 425, 429})
_PARTIAL: Final = 206
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 10
_CHUNK_BYTES: Final = 1_048_576
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})

MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of one JSON answer; a page of a thousand files has some 300 KB."""
MOST_ENTRIES: Final = 100_000
"""Files and folders of one commit."""
_LARGEST_FILE: Final = 2**50
_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Unreachable(CannotLoad):
    """The hub did not answer for as long as anybody waits for it."""


class _Passing(Exception):
    """A failure that may be over in a moment."""

    def __init__(self, message: str, *, rest_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.rest_seconds = rest_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a hub that fails is asked again; bytes that came meanwhile start the count anew."""

    tries: int = 8
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    silence_seconds: float = 60.0
    """A connection over which nothing came for so long counts as gone."""
    answer_seconds: float = 120.0
    """All of one answer but a file's has so long, however slowly it moves."""
    listing_seconds: float = 3600.0
    """All pages of a list of files together have so long."""

    def pause_seconds(self, failures: int) -> float | None:
        """The pause after so many failures in a row, twice the one before; None: give up."""
        if failures >= self.tries:
            return None
        return min(self.first_pause_seconds * 2.0 ** (failures - 1), self.longest_pause_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAccess:
    """Which hub is asked, and with which token."""

    endpoint: str
    token: str | None
    patience: Patience = Patience()

    def impatient(self) -> Self:
        """The same for a question that may stay without an answer."""
        return replace(self, patience=replace(self.patience, tries=1))


OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether no hub may be asked; by the variables that the hub's own libraries heed."""
    return any(environ.get(name, "").upper() in _TRUE for name in OFFLINE)


def hub_access(environ: Mapping[str, str]) -> HubAccess:
    """The access that this machine is set up for; raises `CannotLoad`."""
    # Here and not above: it takes a while, and is not needed for what was fetched already.
    from huggingface_hub import get_token

    endpoint = (environ.get("HF_ENDPOINT") or _HOME).rstrip("/")
    try:
        address = URL(endpoint)
        sound = address.scheme in ("http", "https") and bool(address.host)
    except ValueError:
        sound = False
    if sound and address.user is not None:
        raise CannotLoad("HF_ENDPOINT: names a user, which a hub is not asked as; it takes a token")
    if not sound:
        raise CannotLoad(f"HF_ENDPOINT: {endpoint} is not a URL such as {_HOME}")
    return HubAccess(endpoint=endpoint, token=get_token())


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file of a commit."""

    path: str
    size: int
    """Bytes."""
    sha256: str | None
    """Of large files; the others are known by their name in git alone."""
    git_sha1: str


class Hub:
    """One repository at one revision on a hub. Every method raises `CannotLoad`."""

    def __init__(self, access: HubAccess, repo: str, revision: str) -> None:
        self._access = access
        self._repo = repo
        self._named = f"source.huggingFace: {repo} at {revision}"
        self._revision = revision
        self._origin = URL(access.endpoint).origin()

    async def __aenter__(self) -> Self:
        silence = self._access.patience.silence_seconds
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=silence, sock_read=silence),
            # A compressed answer could be neither resumed nor counted.
            headers={"Accept-Encoding": "identity", "User-Agent": "batchedmodel"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._session.close()

    async def commit(self) -> str:
        """The commit that the revision is now."""
        address = self._api(f"revision/{quote(self._revision, safe='')}")
        answer, _ = await self._patiently(partial(self._json, address))
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or COMMIT.fullmatch(commit) is None:
            raise CannotLoad(f"{address.host} does not answer as a hub does")
        return commit

    async def files(self, commit: str) -> list[HubFile]:
        """All files of a commit."""
        files, entries = list[HubFile](), 0
        seconds = self._access.patience.listing_seconds
        address: URL | None = self._api(f"tree/{commit}?recursive=true&expand=false")
        try:
            async with asyncio.timeout(seconds):
                while address is not None:
                    page, address = await self._patiently(partial(self._json, address))
                    if not isinstance(page, list):
                        raise TypeError("it is not a list")
                    entries += len(page)
                    if entries > MOST_ENTRIES:
                        raise CannotLoad(f"{self._named} has more than {MOST_ENTRIES} files")
                    files.extend(_file(entry) for entry in page if entry["type"] == "file")
                    if not page:
                        break
        except TimeoutError as error:
            told = f"{self._named}: the hub's list of files did not end within {seconds:g} s"
            raise Unreachable(told) from error
        except (KeyError, TypeError, ValueError) as error:
            told = f"{self._named}: the hub's list of files makes no sense"
            raise CannotLoad(told) from error
        return files

    async def download(
        self, commit: str, file: HubFile, into: Path, received: Callable[[int], None]
    ) -> None:
        """Bring the file to its full size, going on where it ended; its content is not checked.

        `received` is told of bytes as they come.
        """
        text = f"{self._access.endpoint}/{self._repo}/resolve/{commit}/{quote(file.path)}"
        stream = partial(self._stream, URL(text, encoded=True), file, into, received)
        await self._patiently(stream, lambda: _size(into))

    async def _stream(
        self, address: URL, file: HubFile, into: Path, received: Callable[[int], None]
    ) -> None:
        have = _present(into, file.size)
        if have == file.size:
            return
        headers = {"Range": f"bytes={have}-"} if have else {}
        async with self._answer(address, headers) as response:
            # A server may send all of a file when asked for its end.
            found = re.match(r"bytes ([0-9]{1,18})-", response.headers.get("Content-Range", ""))
            begin = int(found[1]) if found and response.status == _PARTIAL else 0
            if begin not in (0, have):
                raise _Passing(f"{file.path} came from byte {begin} on, not from {have}")
            # Never shortened: another process that writes the same bytes is not disturbed.
            descriptor = os.open(into, os.O_WRONLY | os.O_CREAT, 0o666)
            with os.fdopen(descriptor, "wb") as output:
                end = output.seek(begin)
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    end += len(chunk)
                    if end > file.size:
                        raise CannotLoad(f"{self._named}: {file.path} is longer than the hub says")
                    output.write(chunk)
                    received(len(chunk))
        if end < file.size:
            raise _Passing(f"{file.path} ended after {end} of {file.size} bytes")

    async def _json(self, address: URL) -> tuple[Any, URL | None]:
        """The answer, and where it goes on."""
        seconds, body = self._access.patience.answer_seconds, bytearray()
        try:
            async with asyncio.timeout(seconds), self._answer(address, {}) as response:
                with self._leading():
                    following = response.links.get("next")
                    leads = _address(URL(str(following["url"]))) if following else None
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    body += chunk
                    if len(body) > MOST_ANSWER_BYTES:
                        told = f"answers more than {MOST_ANSWER_BYTES} bytes of JSON"
                        raise CannotLoad(f"{address.host} {told}")
        except TimeoutError as error:
            raise _Passing(f"{address.host} did not answer within {seconds:g} s") from error
        try:
            return json.loads(body), leads
        except (ValueError, RecursionError) as error:
            raise CannotLoad(f"{address.host} does not answer as a hub does") from error

    @asynccontextmanager
    async def _answer(
        self, address: URL, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer. Raises `_Passing` and `CannotLoad`, also for what happens to its body."""
        try:
            for _ in range(_MOST_REDIRECTS):
                # Followed by hand: each host gets its own proxy, and only the hub gets the token.
                sent = dict(headers)
                if self._access.token is not None and address.origin() == self._origin:
                    sent["Authorization"] = f"Bearer {self._access.token}"
                proxy = proxy_to(str(address), os.environ)
                async with self._session.get(
                    address, headers=sent, proxy=proxy, allow_redirects=False
                ) as response:
                    location = response.headers.get("Location")
                    if response.status in _REDIRECTS and location:
                        with self._leading():
                            # What was signed as it is written must be sent as it is written.
                            address = _address(address.join(URL(location, encoded=True)))
                        continue
                    self._judge(response)
                    yield response
                    return
            raise CannotLoad(f"{self._named}: the hub leads in circles")
        except aiohttp.InvalidURL as error:
            raise CannotLoad(f"{self._named}: the hub leads nowhere") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise CannotLoad(f"{address.host}: its certificate is not to be trusted") from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _Passing(f"{address.host}: {str(error) or type(error).__name__}") from error

    @contextmanager
    def _leading(self) -> Iterator[None]:
        """Around what reads where a list goes on or a redirect leads."""
        try:
            yield
        except (KeyError, ValueError) as error:
            raise CannotLoad(f"{self._named}: the hub leads nowhere") from error

    def _judge(self, response: aiohttp.ClientResponse) -> None:
        status, code = response.status, response.headers.get("X-Error-Code", "")
        if response.ok:
            return
        said = response.headers.get("X-Error-Message", response.reason or "")[:_SAID_CHARACTERS]
        elsewhere = response.url.origin() != self._origin
        if status in _ASK_AGAIN or status >= 500 or elsewhere:
            # Elsewhere: an address that was signed for a while only. The hub gives another.
            rest = response.headers.get("Retry-After", "")
            raise _Passing(
                f"{response.url.host} answered {status} {said}".rstrip(),
                rest_seconds=float(rest) if rest.isdecimal() else 0.0,
            )
        raise CannotLoad(f"{self._named} {self._refusal(status, code, said)}")

    def _refusal(self, status: int, code: str, said: str) -> str:
        seen = "without a token" if self._access.token is None else "with this token"
        if code == "RevisionNotFound":
            return "is not on the hub: the repository has no such revision"
        if code == "GatedRepo":
            return f"is gated: access has to be asked for on its page, and is not given {seen}"
        if status == 403:
            return f"is forbidden {seen}: {said}"
        if status in (401, 404):
            return f"is not on the hub, or not to be seen {seen}"
        return f"is refused by the hub: {status} {said}"

    async def _patiently(
        self, attempt: Callable[[], Awaitable[Answer]], position: Callable[[], int] = lambda: 0
    ) -> Answer:
        patience = self._access.patience
        failures, before = 0, position()
        while True:
            try:
                return await attempt()
            except _Passing as error:
                moved = position() > before
                before = max(before, position())
                failures = 1 if moved else failures + 1
                pause = patience.pause_seconds(failures)
                if pause is None:
                    raise Unreachable(
                        f"{self._named} could not be fetched, tried {failures} times: {error}"
                    ) from error
                pause = max(pause, min(error.rest_seconds, patience.longest_pause_seconds))
                _log.warning("%s; trying again in %g s", error, pause)
            await asyncio.sleep(pause)

    def _api(self, rest: str) -> URL:
        return URL(f"{self._access.endpoint}/api/models/{self._repo}/{rest}", encoded=True)


def _present(file: Path, size: int) -> int:
    """How much of a file is there; one that is too long is of something else."""
    if size == 0:
        file.touch()
    if _size(file) > size:
        file.unlink()
    return _size(file)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _address(leads: URL) -> URL:
    """The same; raises `ValueError` for what names no host, or no port that there can be."""
    if leads.host is None or leads.scheme not in ("http", "https"):
        raise ValueError
    return leads


def _file(entry: Mapping[str, Any]) -> HubFile:
    path, size, large, name = entry["path"], entry["size"], entry.get("lfs"), entry["oid"]
    digest = None if large is None else large["oid"]
    if type(size) is not int or not 0 <= size <= _LARGEST_FILE:
        raise ValueError("a file has no size")
    if not all(isinstance(text, str) for text in (path, name, digest or "")):
        raise TypeError("a file is not named by texts")
    return HubFile(path=path, size=size, sha256=digest, git_sha1=name)
