"""What a hub says, judged before anything is done with it.

A hub may be anybody's, and lie: whatever it says is bounded here by bytes, entries and pages.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from yarl import URL

from batchedmodel_model_server.errors import CannotLoad

MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of one JSON answer; a page of a thousand files has some 300 KB."""
MOST_ENTRIES: Final = 100_000
"""Files and folders of one commit."""
MOST_PAGES: Final = 1_000
"""In which they are listed."""
_LARGEST_FILE: Final = 2**50
_CHUNK_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file of a commit."""

    path: str
    size: int
    """Bytes."""
    sha256: str | None
    """Of large files; the others are known by their name in git alone."""
    git_sha1: str


class Listing:
    """The files of a commit, page by page."""

    def __init__(self, named: str) -> None:
        """`named`: the commit, for those who read why it cannot be had."""
        self._named = named
        self._entries = 0
        self._pages = 0
        self.files: Final[list[HubFile]] = []

    def add(self, page: object) -> None:
        """One more page; raises `CannotLoad` for what is no list, and for one without end."""
        if not isinstance(page, list):
            raise self._nonsense()
        self._pages += 1
        self._entries += len(page)
        if self._entries > MOST_ENTRIES:
            raise CannotLoad(f"{self._named} has more than {MOST_ENTRIES} files")
        if self._pages > MOST_PAGES:
            raise CannotLoad(f"{self._named}: the hub lists it in more than {MOST_PAGES} pages")
        try:
            self.files.extend(_file(entry) for entry in page if entry["type"] == "file")
        except (KeyError, TypeError, ValueError) as error:
            raise self._nonsense() from error

    def _nonsense(self) -> CannotLoad:
        return CannotLoad(f"{self._named}: the hub's list of files makes no sense")


async def json_of(response: aiohttp.ClientResponse, host: str | None) -> Any:
    """The document that a response brings; raises `CannotLoad`, and what reading it raises."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_ANSWER_BYTES:
            raise CannotLoad(f"{host} answers more than {MOST_ANSWER_BYTES} bytes of JSON")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CannotLoad(f"{host} does not answer as a hub does") from error


def next_page(response: aiohttp.ClientResponse, named: str) -> URL | None:
    """Where a list goes on; raises `CannotLoad`."""
    try:
        following = response.links.get("next")
        return _address(URL(str(following["url"]))) if following else None
    except (KeyError, ValueError) as error:
        raise CannotLoad(f"{named}: the hub leads nowhere") from error


def led_to(address: URL, location: str, named: str) -> URL:
    """Where a redirect leads; raises `CannotLoad`."""
    try:
        # What was signed as it is written must be sent as it is written.
        return _address(address.join(URL(location, encoded=True)))
    except ValueError as error:
        raise CannotLoad(f"{named}: the hub leads nowhere") from error


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
