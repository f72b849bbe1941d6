"""When holes in the heap are given back: soon after much was held, and never while it is."""

import asyncio
from types import SimpleNamespace

import pytest

from batchedmodel_sidecar.body import heap

MEBIBYTE = 1 << 20


async def trims(monkeypatch: pytest.MonkeyPatch, held: list[int]) -> list[int]:
    """What was asked of the library, for such bytes held: as a body comes, and half a second on."""
    asked: list[int] = []
    monkeypatch.setattr(heap, "_LIBC", SimpleNamespace(malloc_trim=asked.append))
    monkeypatch.setattr(heap, "_REST_SECONDS", 0.01)
    made = heap.Heap(lambda: held[0])
    made.body_comes()
    made.body_comes()
    while len(held) > 1:
        await asyncio.sleep(0.05)
        held.pop(0)
    await asyncio.sleep(0.05)
    return asked


async def test_much_that_is_gone_is_given_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await trims(monkeypatch, [64 * MEBIBYTE, 0]) == [0]


async def test_nothing_is_given_back_while_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await trims(monkeypatch, [64 * MEBIBYTE]) == []


async def test_little_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await trims(monkeypatch, [MEBIBYTE, 0]) == []
