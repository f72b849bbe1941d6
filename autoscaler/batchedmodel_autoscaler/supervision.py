"""Runs what is meant to last for as long as nothing of it fails. Knows nothing of what that is."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

Work = Coroutine[Any, Any, None]


async def last(lasting: Iterable[Work], *, once: Work, until: Work) -> None:
    """Until `until` has ended. What is `lasting` must not end before it; `once` may, but not fail.

    Whatever fails has met a bug of ours, and without it the rest would look alive and do nothing:
    it is raised, for the process to be started again. All has been cancelled by then.
    """
    parts = [asyncio.create_task(one) for one in lasting]
    first, end = asyncio.create_task(once), asyncio.create_task(until)
    tasks = [*parts, first, end]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if done == {first} and first.exception() is None:
            done, _ = await asyncio.wait([*parts, end], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    for task in done.intersection(parts):
        raise RuntimeError(f"{task.get_coro()!r} has ended")
