"""Large answers are read beside the event loop, and lists in turns with it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_kube.object_text import LARGE, ItemSplitter, Unreadable
from batchedmodel_kube.reading import LineSplitter, apart, items_of, steadily


async def test_large_objects_are_read_one_after_the_other() -> None:
    """Several threads would leave the loop less time the more large objects there are."""
    at_once = most = 0
    counting = threading.Lock()
    others = threading.Event()

    def read(text: bytes) -> int:
        nonlocal at_once, most
        with counting:
            at_once += 1
            most = max(most, at_once)
        others.wait(0.02)
        with counting:
            at_once -= 1
        return len(text)

    large = b"x" * (LARGE + 1)
    assert await asyncio.gather(*(apart(large, read) for _ in range(8))) == [len(large)] * 8
    assert most == 1


async def test_the_loop_goes_on_beside_a_large_object() -> None:
    """It waits for the reader each time that it has waited for the machine."""
    over, never = threading.Event(), threading.Event()

    def read(_: bytes) -> float:
        began = time.thread_time()
        while not over.is_set():
            pass
        return time.thread_time() - began

    reading = asyncio.create_task(apart(b"x" * (LARGE + 1), read))
    for _ in range(100):
        await asyncio.sleep(0)
        never.wait(0.0001)  # as a write to a connection does
    over.set()
    # With Python's own five milliseconds for each turn of the reader it was half a second.
    assert await reading < 0.25


async def test_a_list_that_has_arrived_is_cut_apart_in_turns_with_others() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def chunks() -> AsyncIterator[bytes]:
        text = b'{"items":[' + b",".join([b'{"x":1}'] * 1_000) + b"]}"
        for at in range(0, len(text), 100):
            yield text[at : at + 100]

    beside = asyncio.create_task(others())
    splitter = ItemSplitter()
    assert (
        len([item async for item in items_of(chunks(), splitter, bytes, list[Unreadable]().append)])
        == 1_000
    )
    assert turns >= 70
    beside.cancel()


async def arriving(size: int, apart_by: float, *, times: int = 1_000) -> AsyncIterator[bytes]:
    for _ in range(times):
        await asyncio.sleep(apart_by)
        yield b"x" * size


@pytest.mark.looptime
async def test_an_answer_that_trickles_is_given_up_when_patience_ends() -> None:
    """However often it shows a sign of life."""
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async for _ in steadily(arriving(1, 5.0), 30.0):
            pass
    assert 29 < loop.time() < 31


@pytest.mark.looptime
async def test_a_large_answer_over_a_slow_line_is_read_to_its_end() -> None:
    found = [len(chunk) async for chunk in steadily(arriving(100_000, 1.0, times=90), 30.0)]
    assert sum(found) == 9_000_000


@pytest.mark.looptime
async def test_the_time_in_which_an_answer_is_read_is_nobodys_delay() -> None:
    async for _ in steadily(arriving(1, 0.1, times=10), 2.0):
        await asyncio.sleep(20)


@given(st.lists(st.binary(max_size=9), max_size=9), st.integers(1, 12))
def test_a_watch_gives_its_lines_however_it_is_cut(lines: list[bytes], size: int) -> None:
    wanted = [line for line in b"\n".join(lines).split(b"\n") if line]
    text = b"\n".join(lines) + b"\n"
    splitter = LineSplitter()
    found = [
        line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size])
    ]
    assert found == wanted
