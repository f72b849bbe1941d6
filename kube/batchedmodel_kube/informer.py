"""Follows collections of objects: lists once, then watches, and tells what is there as it changes.

One task follows one collection. What was missed while a connection was down comes with the next
list, as differences from what the cache holds.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping, Set
from typing import Final, Generic, TypeVar

from batchedmodel_kube.client import Client, Collection, Event, EventType
from batchedmodel_kube.errors import ENDINGS, ClusterError, Forbidden, TooOld
from batchedmodel_kube.reading import Object

logger: Final = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_BETWEEN_WATCHES: Final = 0.5
_SHORT_WATCH_SECONDS: Final = 5.0
"""A watch that ended sooner without an event counts as a failure: a server that ends all watches at
once is not asked in a tight loop."""
_MOST_DIGITS: Final = 20
"""Of a version: an API server's store counts with 64 bits."""

Record = TypeVar("Record")


class Cache(Generic[Record]):
    """What is there of one collection, told onwards as it changes.

    An object is never replaced by an earlier version of itself: a write of ours may be known before
    the watch has come as far.
    """

    def __init__(
        self,
        read: Callable[[Object], Record],
        *,
        seen: Callable[[Record], None],
        gone: Callable[[Record], None],
        renewed: Callable[[Record], None] = lambda _: None,
    ) -> None:
        """`renewed` hears of a record in a later version that brings no news: it is equal to the
        one before, or made of what a write of ours was answered with."""
        self._read = read
        self._seen = seen
        self._gone = gone
        self._renewed = renewed
        self._records: dict[str, tuple[int, Record]] = {}
        """By uid, each with its version."""
        self._version = 0
        """As far as lists and watches have come."""
        self.complete: Final = asyncio.Event()
        """Set once a first list has been read."""
        self.tried: Final = asyncio.Event()
        """Set once that was tried, whatever came of it."""
        self.failure: ClusterError | None = None
        """Why the last list or watch failed."""
        self.left_out = 0
        """How often an object was not as its kind should be."""

    def add(self, found: Object) -> str:
        """An object of a list; its uid, which is empty if it is not as its kind should be."""
        read = self.read(found)
        if read is None:
            return ""
        uid, record = read
        self._put(uid, number_of(found["metadata"].get("resourceVersion", "")), record)
        return uid

    def end_list(self, uids: Set[str], version: str) -> None:
        """A list of this version has ended, and has had objects with these uids and no others."""
        for uid in self._records.keys() - uids:
            if self._records[uid][0] <= number_of(version):
                self._tell(self._gone, self._records.pop(uid)[1])
        self._version = number_of(version)
        self.failure = None
        self.complete.set()
        self.tried.set()

    def take(self, event: Event) -> None:
        """A message of a watch.

        What is not as its kind should be any more is gone, since a list would leave it out. What
        was deleted is gone whatever its last state says.
        """
        self.failure = None
        version = self._version = number_of(event.version)
        if event.type is EventType.BOOKMARK:
            return
        read = None if event.type is EventType.DELETED else self.read(event.found)
        if read is not None:
            uid, record = read
            # An answer to us shows an object by the present definition of its kind. A watch that
            # began before the definition changed does not.
            if version > self._records.get(uid, (-1, None))[0]:
                self._put(uid, version, record)
            return
        uid = _uid_of(event.found)
        known, record_gone = self._records.get(uid, (0, None))
        if record_gone is not None and known <= version:
            del self._records[uid]
            self._tell(self._gone, record_gone)

    def wrote(self, found: Object) -> None:
        """What a write of ours was answered with, which is no news.

        An answer may come after the watch has told of the object's end. So an object that is not
        there is taken from an answer only where the watch has not come as far.
        """
        if (read := self.read(found)) is not None:
            uid, record = read
            version = number_of(found["metadata"].get("resourceVersion", ""))
            is_new = uid not in self._records and version > self._version
            if is_new or version >= self._records.get(uid, (math.inf, None))[0]:
                self._records[uid] = version, record
                self._tell(self._renewed, record)

    def failed(self, error: ClusterError) -> None:
        """A list or a watch did not succeed."""
        self.failure = error
        self.tried.set()

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

    def _put(self, uid: str, version: int, record: Record) -> None:
        known, before = self._records.get(uid, (0, None))
        if version < known:
            return
        self._records[uid] = version, record
        self._tell(self._renewed if before == record else self._seen, record)

    def _tell(self, whom: Callable[[Record], None], record: Record) -> None:
        try:
            whom(record)
        except ENDINGS:
            raise
        except BaseException:
            # Our bug, met by this object only: the others must be followed all the same.
            self.left_out += 1
            logger.exception("%.200r is left out", record)


def number_of(version: str) -> int:
    """A `resourceVersion` as a number, which API servers count upwards; 0 for what is none."""
    return int(version) if version.isdecimal() and len(version) <= _MOST_DIGITS else 0


def _uid_of(found: Object) -> str:
    metadata = found.get("metadata")
    return str(metadata.get("uid")) if isinstance(metadata, Mapping) else ""


async def follow(client: Client, collection: Collection, cache: Cache[Record]) -> None:
    """Keep a cache right for as long as the task lives."""
    clock = asyncio.get_running_loop().time
    version, failures, just_listed = "", 0, False
    while True:
        try:
            if not version:
                version = await _list(client, collection, cache)
                just_listed = True
            began, events = clock(), 0
            async for event in client.watch(collection, version):
                cache.take(event)
                version, failures = event.version, 0
                events += 1
        except ClusterError as error:
            if not isinstance(error, TooOld):
                cache.failed(error)
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
            lasted = clock() - began
            failures = failures + 1 if not events and lasted < _SHORT_WATCH_SECONDS else 0
            await asyncio.sleep(max(_BETWEEN_WATCHES, pause_after(failures, random.random())))
        just_listed = False


def pause_after(failures: int, chance: float) -> float:
    """Seconds before the next try: doubling, and spread by `chance` (0 to 1) over the upper half.

    So clients that lost the same server do not all come back in one moment.
    """
    longest: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures - 1, 16))
    return longest * (0.5 + chance / 2)


async def _list(client: Client, collection: Collection, cache: Cache[Record]) -> str:
    # Each object becomes a record at once, so that no more than one is held as JSON.
    uids: set[str] = set()
    version = ""
    async for event in client.list(collection):
        if event.type is EventType.BOOKMARK:
            version = event.version
        else:
            uids.add(cache.add(event.found))
    cache.end_list(uids, version)
    return version
