"""Lists and watches in virtual time: what is missed once comes the next time."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from batchedmodel_kube.client import Client, Collection, Event, EventType
from batchedmodel_kube.errors import ClusterError, Forbidden, TooOld, Unreachable
from batchedmodel_kube.informer import Cache, follow, pause_after
from batchedmodel_kube.object_text import parsed
from batchedmodel_kube.reading import Object
from support.running_task import running

PODS = Collection(path="/api/v1/pods", read=parsed)


def an_object(name: str) -> Object:
    return {"metadata": {"uid": name}, "name": name}


class PretendSource:
    """An API server whose watches the tests script; each watch ends after its events."""

    def __init__(self, names: list[str], watches: list[list[Event] | ClusterError]) -> None:
        self.names = names
        self.watches = watches
        self.asked: list[str] = []

    async def list(self, collection: Collection) -> AsyncIterator[Event]:
        self.asked.append("list")
        for name in self.names:
            yield Event(type=EventType.ADDED, found=an_object(name))
        yield Event(type=EventType.BOOKMARK, found={}, version="100")

    async def watch(self, collection: Collection, version: str) -> AsyncIterator[Event]:
        self.asked.append(f"watch {version}")
        script = self.watches.pop(0) if self.watches else []
        if isinstance(script, ClusterError):
            raise script
        for event in script:
            yield event
        if not self.watches:
            await asyncio.Event().wait()


def event(kind: EventType, name: str, version: int) -> Event:
    return Event(type=kind, found=an_object(name), version=str(version))


class Listening:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.cache: Cache[str] = Cache(
            lambda found: str(found["name"]),
            seen=lambda name: self.told.append(f"+{name}"),
            gone=lambda name: self.told.append(f"-{name}"),
        )


@pytest.mark.looptime
async def test_a_list_is_read_to_its_end_before_the_cache_is_complete() -> None:
    listening, source = Listening(), PretendSource(["a", "b", "c"], [])
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        await asyncio.wait_for(listening.cache.complete.wait(), 1)
        assert listening.told == ["+a", "+b", "+c"]
        await asyncio.sleep(1)
        assert source.asked == ["list", "watch 100"]


@pytest.mark.looptime
async def test_a_watch_that_ends_goes_on_from_the_last_version() -> None:
    script = [event(EventType.ADDED, "b", 101), event(EventType.BOOKMARK, "?", 150)]
    listening, source = Listening(), PretendSource(["a"], [script, []])
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        await asyncio.sleep(10)
    assert listening.told == ["+a", "+b"]
    assert source.asked == ["list", "watch 100", "watch 150"]


@pytest.mark.parametrize("kind", [EventType.MODIFIED, EventType.DELETED])
def test_what_is_not_as_its_kind_should_be_any_more_is_gone(kind: EventType) -> None:
    listening = Listening()
    listening.cache.take(event(EventType.ADDED, "a", 101))
    listening.cache.take(event(EventType.ADDED, "b", 102))
    nameless = {"metadata": an_object("a")["metadata"]}
    listening.cache.take(Event(type=kind, found=nameless, version="103"))
    assert listening.told == ["+a", "+b", "-a"]


@pytest.mark.looptime
async def test_a_version_that_is_too_old_lists_anew_and_tells_only_differences() -> None:
    listening = Listening()
    source = PretendSource(["a", "b"], [TooOld("expired"), []])
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        await asyncio.sleep(0.1)
        source.names = ["b", "c"]
        await asyncio.sleep(10)
    assert listening.told == ["+a", "+b", "+c", "-a"]
    assert source.asked == ["list", "watch 100", "list", "watch 100"]


@pytest.mark.looptime
@pytest.mark.slow
async def test_a_version_that_grew_too_old_while_nothing_answered_lists_anew_at_once() -> None:
    lost, old = Unreachable("not found"), TooOld("expired")
    listening, source = Listening(), PretendSource(["a"], [lost] * 6)
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        source.watches += [old, []]
        while source.asked.count("list") < 2:
            asked = len(source.asked)
            await asyncio.sleep(0.01)
        assert source.asked[asked:] == ["watch 100", "list", "watch 100"]


@pytest.mark.looptime
async def test_lists_that_are_always_too_old_are_asked_for_more_and_more_rarely() -> None:
    old = TooOld("expired")
    listening, source = Listening(), PretendSource(["a"], [old] * 1000)
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        await asyncio.sleep(60)
    assert 5 <= source.asked.count("list") <= 10


@pytest.mark.looptime
async def test_a_lost_connection_is_opened_again_from_the_last_version() -> None:
    script = [event(EventType.DELETED, "a", 120)]
    lost = Unreachable("connection reset")
    listening, source = Listening(), PretendSource(["a"], [script, lost, lost, []])
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        await asyncio.sleep(30)
    assert listening.told == ["+a", "-a"]
    assert source.asked == ["list", "watch 100", "watch 120", "watch 120", "watch 120"]


@pytest.mark.looptime
async def test_an_object_that_has_not_changed_is_not_told_again() -> None:
    script = [event(EventType.MODIFIED, "a", 101), event(EventType.DELETED, "unknown", 102)]
    listening, source = Listening(), PretendSource(["a"], [script])
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        await asyncio.sleep(10)
    assert listening.told == ["+a"]


@pytest.mark.looptime
async def test_a_namespace_that_may_not_be_seen_holds_up_nobody_and_is_asked_again() -> None:
    class Closed(PretendSource):
        async def list(self, collection: Collection) -> AsyncIterator[Event]:
            if not self.names:
                self.asked.append("refused")
                raise Forbidden("pods is forbidden")
            async for one in super().list(collection):
                yield one

    listening, source = Listening(), Closed([], [])
    async with running(
        follow(cast(Client, source), replace(PODS, may_be_closed=True), listening.cache)
    ):
        await asyncio.wait_for(listening.cache.complete.wait(), 1)
        source.names = ["pod"]
        await asyncio.sleep(10)
    assert listening.told == ["+pod"]
    everywhere, source = Listening(), Closed([], [])
    async with running(follow(cast(Client, source), PODS, everywhere.cache)):
        await asyncio.sleep(10)
    assert not everywhere.cache.complete.is_set()
    assert source.asked


def test_pauses_double_up_to_half_a_minute_and_are_spread() -> None:
    assert [pause_after(n, 1.0) for n in (1, 2, 3, 7, 8, 10_000)] == [0.5, 1, 2, 30, 30, 30]
    assert pause_after(1, 0.0) == 0.25


class _Panic(BaseException):
    pass


@pytest.mark.parametrize("kind", [RecursionError, OverflowError, _Panic])
@pytest.mark.parametrize("where", ["read", "seen", "gone"])
def test_what_fails_for_one_object_costs_no_other(where: str, kind: type[BaseException]) -> None:
    told: list[str] = []

    def fails(step: str, name: str) -> str:
        told.append(f"{step} {name}")
        if (step, name) == (where, "bad"):
            raise kind
        return name

    cache: Cache[str] = Cache(
        lambda found: fails("read", found["name"]),
        seen=lambda name: told.append(fails("seen", name)),
        gone=lambda name: told.append(fails("gone", name)),
    )
    for change in (EventType.ADDED, EventType.DELETED):
        for name in ("bad", "good"):
            cache.take(Event(type=change, found=an_object(name), version="1"))
    assert {f"{step} good" for step in ("read", "seen", "gone")} <= set(told)
    for name in ("bad", "good"):
        cache.add(an_object(name))
    cache.end_list(set(), "1")
    assert cache.left_out > 0


@pytest.mark.looptime
async def test_a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely() -> None:
    source = PretendSource(["a"], [[] for _ in range(1000)])
    async with running(follow(cast(Client, source), PODS, Listening().cache)):
        await asyncio.sleep(60)
        assert len(source.asked) <= 10, "each half second makes 120, of each of ten kinds"


def versioned(name: str, version: int, **more: str) -> Object:
    return {"metadata": {"uid": name, "resourceVersion": str(version)}, "name": name, **more}


class Versions:
    """A cache that keeps names, and what it tells."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.cache: Cache[str] = Cache(
            lambda found: str(found["said"]),
            seen=lambda said: self.told.append(f"+{said}"),
            gone=lambda said: self.told.append(f"-{said}"),
            renewed=lambda said: self.told.append(f"={said}"),
        )

    def event(self, kind: EventType, version: int, said: str) -> None:
        found = versioned("a", version, said=said)
        self.cache.take(Event(type=kind, found=found, version=str(version)))


def test_what_a_write_of_ours_made_is_known_at_once_and_no_news() -> None:
    versions = Versions()
    versions.event(EventType.ADDED, 7, "old")
    versions.cache.wrote(versioned("a", 9, said="ours"))
    versions.event(EventType.MODIFIED, 8, "stale")
    versions.event(EventType.MODIFIED, 9, "ours")
    assert versions.told == ["+old", "=ours"]
    versions.event(EventType.MODIFIED, 10, "another's")
    versions.cache.wrote(versioned("a", 9, said="ours"))
    assert versions.told[2:] == ["+another's"]


def test_an_answer_that_comes_after_the_end_of_its_object_brings_nothing_back() -> None:
    """Somebody deletes what was just applied, and the watch is faster than the answer."""
    versions = Versions()
    versions.event(EventType.ADDED, 9, "ours")
    versions.event(EventType.DELETED, 10, "ours")
    versions.cache.wrote(versioned("a", 9, said="ours"))
    assert versions.told == ["+ours", "-ours"]


def test_an_answer_of_the_version_that_the_watch_has_shown_stands() -> None:
    """A watch from before another definition shows an object without its new fields."""
    versions = Versions()
    versions.event(EventType.ADDED, 9, "without a field")
    versions.cache.wrote(versioned("a", 9, said="whole"))
    versions.event(EventType.MODIFIED, 9, "without a field")
    assert versions.told == ["+without a field", "=whole"]


def test_a_deletion_and_a_list_from_before_a_write_of_ours_take_nothing_away() -> None:
    versions = Versions()
    versions.cache.wrote(versioned("a", 9, said="ours"))
    versions.event(EventType.DELETED, 8, "stale")
    versions.cache.end_list(set(), "8")
    assert versions.told == ["=ours"]
    versions.cache.end_list(set(), "10")
    assert versions.told == ["=ours", "-ours"]


@pytest.mark.looptime
async def test_why_a_collection_cannot_be_listed_is_known_until_it_can() -> None:
    class Refusing(PretendSource):
        async def list(self, collection: Collection) -> AsyncIterator[Event]:
            if not self.names:
                raise Forbidden("pods is forbidden")
            async for one in super().list(collection):
                yield one

    listening, source = Listening(), Refusing([], [])
    async with running(follow(cast(Client, source), PODS, listening.cache)):
        await asyncio.wait_for(listening.cache.tried.wait(), 1)
        assert not listening.cache.complete.is_set()
        assert isinstance(listening.cache.failure, Forbidden)
        source.names = ["pod"]
        await asyncio.sleep(60)
        assert listening.cache.complete.is_set()
        assert listening.cache.failure is None
