"""How many characters are at work at once, whoever still waits for them."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any, Final

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.fair_threads import FairThreads
from batchedmodel_sidecar.errors import Rejected
from batchedmodel_sidecar.tokenizer import Tokens, text_threads
from support.hostile_tokenizers import PANICS_OVER_TEXT, PANICS_WHEN_READ
from support.text_handlers import Ranker, tokenizer_json

MOST: Final = 4_000_000
LONG: Final = "a" * (MOST // 2 + 1)
"""More than half of what may be at work at once."""


class HeldThread(ThreadPoolExecutor):
    """One thread, whose works end when the test lets them and are not done."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun, self.let = Event(), Event()

    def submit(self, *_: Any, **__: Any) -> Any:
        return super().submit(self._hold)

    def _hold(self) -> list[object]:
        self.begun.set()
        assert self.let.wait(10)
        return []

    async def all_done(self) -> None:
        """Let the works end, and wait until everything that follows from them is done too."""
        self.let.set()
        await asyncio.wrap_future(super().submit(int))


@pytest.fixture
async def thread() -> AsyncIterator[HeldThread]:
    with HeldThread() as thread:
        yield thread
        thread.let.set()


async def assert_full(tokens: Tokens) -> None:
    with pytest.raises(Rejected) as refused:
        await tokens.encode([LONG])
    assert refused.value.reason is Rejection.QUEUE_FULL


async def test_text_whose_caller_left_counts_until_the_thread_is_done_with_it(
    thread: HeldThread,
) -> None:
    tokens = Tokens(tokenizer_json(), Ranker.text, FairThreads(thread, at_once=1, room=MOST))
    caller = asyncio.create_task(tokens.encode([LONG]))
    await asyncio.sleep(0)
    assert thread.begun.wait(10)
    await assert_full(tokens)
    caller.cancel()
    await asyncio.wait([caller])
    await asyncio.sleep(0)
    await assert_full(tokens)
    await thread.all_done()
    assert await tokens.encode([LONG]) == []


async def test_text_whose_caller_left_before_its_turn_counts_no_more(thread: HeldThread) -> None:
    tokens = Tokens(tokenizer_json(), Ranker.text, FairThreads(thread, at_once=1, room=MOST))
    first = asyncio.create_task(tokens.encode([LONG[:1000]]))
    caller = asyncio.create_task(tokens.encode([LONG]))
    await asyncio.sleep(0)
    await assert_full(tokens)
    caller.cancel()
    await asyncio.wait([caller])
    second = asyncio.create_task(tokens.encode([LONG]))
    await asyncio.sleep(0)
    await thread.all_done()
    assert await first == await second == []


async def test_a_call_of_more_text_than_a_core_reads_in_seconds_is_too_large(
    thread: HeldThread,
) -> None:
    tokens = Tokens(tokenizer_json(), Ranker.text, FairThreads(thread, at_once=1, room=8 * MOST))
    for texts in (["a" * (MOST + 1)], [("a" * MOST, "b")], ["\u4e2d" * (MOST // 2)]):
        with pytest.raises(Rejected, match=f"in UTF-8; {MOST} are taken") as refused:
            await tokens.encode(texts)
        assert refused.value.status == 413
    assert not thread.begun.is_set()
    call = asyncio.create_task(tokens.encode(["a" * MOST]))
    await thread.all_done()
    assert await call == []


@pytest.mark.parametrize("characters", [10, 10_000], ids=["at once", "in a thread"])
async def test_tokenizer_that_panics_fails_each_text_and_frees_its_room(characters: int) -> None:
    threads = text_threads(1)
    tokens = Tokens(PANICS_OVER_TEXT, Ranker.text, threads)
    for _ in range(3):
        with pytest.raises(Rejected, match="tokenizer failed on the text: PanicExc") as refused:
            await tokens.encode(["a" * characters])
        assert refused.value.status == 500
    assert threads.room.in_use == 0
    threads.close()


def test_file_over_which_the_library_panics_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="tokenizer: cannot be read: PanicException: "):
        Tokens(PANICS_WHEN_READ, Ranker.text, text_threads(1))


def test_file_that_cannot_be_cut_to_the_length_is_refused_by_name() -> None:
    text = replace(Ranker.text, max_tokens=-1)
    with pytest.raises(InvalidInput, match="tokenizer: cannot be read: OverflowError: "):
        Tokens(tokenizer_json(), text, text_threads(1))
