"""A story that mostly waits, told beside the tests that run meanwhile."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any


@contextmanager
def running_beside(story: Coroutine[Any, Any, None]) -> Iterator[Future[None]]:
    """Runs it in a loop and a thread of its own; cancelled at the end of the block.

    Gives the future of its outcome.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="beside")
    thread.start()
    future = asyncio.run_coroutine_threadsafe(story, loop)
    try:
        yield future
    finally:
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
