"""Which of the listed namespaces are watched: those that are open, and others once they open."""

import asyncio
from collections.abc import Sequence

import pytest

from batchedmodel_operator.cluster.watching import keep_watching_in

pytestmark = pytest.mark.looptime


class Namespaces:
    """Says which are open; the tests open and close them."""

    def __init__(self, *there: str) -> None:
        self.open = set(there)
        self.answers = True
        self.asked = 0
        self.watched: list[list[str]] = []

    async def is_open(self, namespace: str) -> bool | None:
        self.asked += 1
        return namespace in self.open if self.answers else None

    async def watch(self, there: Sequence[str], stop: asyncio.Event) -> None:
        """As Kopf does: it gives up when one of its requests is forbidden."""
        self.watched.append(list(there))
        while not stop.is_set():
            if not set(there) <= self.open:
                raise PermissionError("pods is forbidden")
            await asyncio.sleep(1)


async def _watched(namespaces: Namespaces, *names: str, seconds: float) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, told.set)
    await keep_watching_in(names, namespaces.watch, namespaces.is_open, told)


async def test_all_are_watched_by_one_watching_and_nobody_is_asked_again() -> None:
    namespaces = Namespaces("a", "b")
    await _watched(namespaces, "a", "b", seconds=600)
    assert namespaces.watched == [["a", "b"]]
    assert namespaces.asked == 2


async def test_one_that_is_closed_is_left_out_until_it_opens() -> None:
    namespaces = Namespaces("a")
    asyncio.get_running_loop().call_later(60, namespaces.open.add, "b")
    await _watched(namespaces, "a", "b", seconds=90)
    assert namespaces.watched == [["a"], ["a", "b"]]


async def test_one_that_closes_ends_the_watching_of_the_others_for_two_seconds_at_most() -> None:
    namespaces = Namespaces("a", "b")
    asyncio.get_running_loop().call_later(60, namespaces.open.discard, "b")
    await _watched(namespaces, "a", "b", seconds=64)
    assert namespaces.watched == [["a", "b"], ["a"]]


async def test_where_none_is_open_nothing_is_watched_until_one_is() -> None:
    namespaces = Namespaces()
    asyncio.get_running_loop().call_later(60, namespaces.open.add, "b")
    await _watched(namespaces, "a", "b", seconds=90)
    assert namespaces.watched == [["b"]]


async def test_an_api_server_that_does_not_answer_closes_and_opens_nothing() -> None:
    namespaces = Namespaces("a")
    loop = asyncio.get_running_loop()
    loop.call_later(5, setattr, namespaces, "answers", False)
    await _watched(namespaces, "a", "b", seconds=120)
    assert namespaces.watched == [["a"]]
    namespaces.watched.clear()
    await _watched(namespaces, "a", seconds=10)
    assert namespaces.watched == [["a"]], "Kopf asks it for as long as it takes"
