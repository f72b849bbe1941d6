"""Follows collections of objects: lists once, then watches, and tells what is there as it changes.

One task follows one collection. What was missed while a connection was down comes with the next
list, as differences from what the cache holds.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from batchedmodel_kube.client import Client, Collection, Event, EventType
from batchedmodel_kube.errors import ENDINGS, ClusterError, Forbidden, TooOld
from batchedmodel_kube.reading import Object

logger: Final = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_BETWEEN_WATCHES: Final = 0.5
"""At least: a server that ends every watch at once is not asked in a tight loop."""

Record = TypeVar("Record")


class Cache(Generic[Record]):
    """What is there of one collection, told onwards as it changes."""

    def __init__(
        self,
        read: Callable[[Object], Record],
        *,
        seen: Callable[[Record], None],
        gone: Callable[[Record], None],
    ) -> None:
        self._read = read
        self._seen = seen
        self._gone = gone
        self._records: dict[str, Record] = {}
        """By uid."""
        self.complete: Final = asyncio.Event()
        """Set once a first list has been read."""
        self.left_out = 0
        """How often an object was not as its kind should be."""

    def replace(self, records: Mapping[str, Record]) -> None:
        """A list: all that is there, by uid."""
        for uid in self._records.keys() - records.keys():
            self._tell(self._gone, self._records.pop(uid))
        for uid, record in records.items():
            self._put(uid, record)
        self.complete.set()

    def take(self, event: Event) -> None:
        """A message of a watch.

        What is not as its kind should be any more is gone, since a list would leave it out. What
        was deleted is gone whatever its last state says.
        """
        if event.type is EventType.BOOKMARK:
            return
        read = None if event.type is EventType.DELETED else self.read(event.found)
        if read is not None:
            self._put(*read)
        elif (record := self._records.pop(_uid_of(event.found), None)) is not None:
            self._tell(self._gone, record)

    def read(self, found: Object) -> tuple[str, Record] | None:
        """An object's uid and record; None for one that is not as its kind should be."""
        try:
            return found["metadata"]["uid"], self._read(found)
        except ENDINGS:
            raise
        except BaseException as error:
            self.left_out += 1
            metadata = found.get("metadata")
            named = metadata if isinstance(metadata, Mapping) else {}
            where = named.get("namespace"), named.get("name")
            logger.warning("%.100s/%.100s is left out: %.200r", *where, error)
            return None

    def _put(self, uid: str, record: Record) -> None:
        if self._records.get(uid) != record:
            self._records[uid] = record
            self._tell(self._seen, record)

    def _tell(self, whom: Callable[[Record], None], record: Record) -> None:
        try:
            whom(record)
        except ENDINGS:
            raise
        except BaseException:
            # Our bug, met by this object only: the others must be followed all the same.
            self.left_out += 1
            logger.exception("%.200r is left out", record)


def _uid_of(found: Object) -> str:
    metadata = found.get("metadata")
    return str(metadata.get("uid")) if isinstance(metadata, Mapping) else ""


async def follow(client: Client, collection: Collection, cache: Cache[Record]) -> None:
    """Keep a cache right for as long as the task lives."""
    version, failures, just_listed = "", 0, False
    while True:
        try:
            if not version:
                version = await _list(client, collection, cache)
                just_listed = True
            async for event in client.watch(collection, version):
                cache.take(event)
                version, failures = event.version, 0
        except ClusterError as error:
            if isinstance(error, Forbidden) and collection.may_be_closed:
                # Else those who wait for the first list would wait for ever.
                cache.complete.set()
            if isinstance(error, TooOld):
                known, version = version, ""
                if known and not just_listed:
                    # The server answers again, so earlier failures are no reason to wait. Only a
                    # list that is too old at once is one, or this would be a tight loop.
                    logger.info("%s: %s; listing anew", collection, error)
                    failures = 0
                    continue
            failures += 1
            pause = pause_after(failures, random.random())
            logger.warning("%s: %s; again in %.1f s", collection, error, pause)
            await asyncio.sleep(pause)
        else:
            await asyncio.sleep(_BETWEEN_WATCHES)
        just_listed = False


def pause_after(failures: int, chance: float) -> float:
    """Seconds before the next try: doubling, and spread by `chance` (0 to 1) over the upper half.

    So clients that lost the same server do not all come back in one moment.
    """
    longest: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures - 1, 16))
    return longest * (0.5 + chance / 2)


async def _list(client: Client, collection: Collection, cache: Cache[Record]) -> str:
    # Each object becomes a record at once, so that no more than one is held as JSON.
    records: dict[str, Record] = {}
    version = ""
    async for event in client.list(collection):
        if event.type is EventType.BOOKMARK:
            version = event.version
        elif (read := cache.read(event.found)) is not None:
            uid, record = read
            records[uid] = record
    cache.replace(records)
    return version
