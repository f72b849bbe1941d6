"""Large answers are read beside the event loop, and lists in turns with it."""

import asyncio
import threading
from collections.abc import AsyncIterator

from batchedmodel_contract.kubernetes.object_text import LARGE, ItemSplitter, Unreadable
from batchedmodel_kube.reading import apart, items_of


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
