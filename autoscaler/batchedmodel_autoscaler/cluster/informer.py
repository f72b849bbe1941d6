"""Follows collections of objects: lists once, then watches, and keeps a cache of what is there.

Run by `service`, one task per collection. Level-triggered: whatever was missed while a connection
was down comes with the next list, as differences from what the cache holds.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from batchedmodel_autoscaler.cluster.objects import Object
from batchedmodel_autoscaler.cluster.resources import Event, EventType, Resource
from batchedmodel_autoscaler.errors import ClusterError, TooOld
from batchedmodel_election.endings import ENDINGS

logger: Final = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_FORBIDDEN: Final = 403
_BETWEEN_WATCHES: Final = 0.5
"""At least: a server that ends every watch at once is not asked in a tight loop."""

Record = TypeVar("Record")


class Source(Protocol):
    """What is asked; `Cluster` is one."""

    async def list_page(
        self, resource: Resource, following: str = ""
    ) -> tuple[list[Object], str, str]:
        """Objects, their version, and what to pass for the next page."""
        ...

    def watch(self, resource: Resource, version: str) -> AsyncIterator[Event]:
        """What happens after a version."""
        ...


class Cache(Generic[Record]):
    """What is there of one collection, told onwards as it changes."""

    def __init__(
        self,
        read: Callable[[Object], Record],
        key: Callable[[Record], Hashable],
        *,
        seen: Callable[[Record], None],
        gone: Callable[[Record], None],
    ) -> None:
        self._read = read
        self._key = key
        self._seen = seen
        self._gone = gone
        self._records: dict[Hashable, Record] = {}
        self.complete: Final = asyncio.Event()
        """Set once a first list was read to its end."""
        self.left_out = 0
        """How often an object was not as its kind should be."""

    def replace(self, records: Iterable[Record]) -> None:
        """A list: all that is there."""
        listed = {self._key(record): record for record in records}
        for key in self._records.keys() - listed.keys():
            self._tell(self._gone, self._records.pop(key))
        for key, record in listed.items():
            self._put(key, record)
        self.complete.set()

    def take(self, event: Event) -> None:
        """A message of a watch."""
        if event.type is EventType.BOOKMARK:
            return
        record = self.read(event.found)
        if record is None:
            return
        key = self._key(record)
        if event.type is not EventType.DELETED:
            self._put(key, record)
        elif self._records.pop(key, None) is not None:
            self._tell(self._gone, record)

    def read(self, found: Object) -> Record | None:
        """An object's record; None where it is not as its kind should be: it is left out."""
        try:
            return self._read(found)
        except ENDINGS:
            raise
        except BaseException as error:
            self.left_out += 1
            metadata = found.get("metadata")
            named = metadata if isinstance(metadata, Mapping) else {}
            where = named.get("namespace"), named.get("name")
            logger.warning("%.100s/%.100s is left out: %.200r", *where, error)
            return None

    def _put(self, key: Hashable, record: Record) -> None:
        if self._records.get(key) != record:
            self._records[key] = record
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


async def follow(source: Source, resource: Resource, cache: Cache[Record]) -> None:
    """Keep a cache right for as long as the task lives."""
    version, failures, just_listed = "", 0, False
    while True:
        try:
            if not version:
                version = await _list(source, resource, cache)
                just_listed = True
            async for event in source.watch(resource, version):
                cache.take(event)
                version, failures = event.version, 0
        except ClusterError as error:
            if error.status == _FORBIDDEN and resource.may_be_closed:
                # Else whoever waits for all that is there would wait for ever.
                cache.complete.set()
            if isinstance(error, TooOld):
                known, version = version, ""
                if known and not just_listed:
                    # The server is there again: what failed before is no reason to wait. Only a
                    # list that is too old at once is, or this would be a tight loop.
                    logger.info("%s; listing anew", error)
                    failures = 0
                    continue
            failures += 1
            pause = pause_after(failures, random.random())
            logger.warning("%s; again in %.1f s", error, pause)
            await asyncio.sleep(pause)
        else:
            await asyncio.sleep(_BETWEEN_WATCHES)
        just_listed = False


def pause_after(failures: int, chance: float) -> float:
    """Seconds before the next try: doubling, and spread by `chance` (0 to 1) over its upper half.

    Spread, so that all who lost one server do not come back in one moment.
    """
    longest: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures - 1, 16))
    return longest * (0.5 + chance / 2)


async def _list(source: Source, resource: Resource, cache: Cache[Record]) -> str:
    # Page by page into records, so that no more than one page is held as JSON.
    records: list[Record] = []
    following, version = "", ""
    while True:
        objects, version, following = await source.list_page(resource, following)
        read = (cache.read(found) for found in objects)
        records += [record for record in read if record is not None]
        if not following:
            cache.replace(records)
            return version
