"""Tasks that nobody waits for."""

import asyncio
from collections.abc import Coroutine


def begun(work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """A task that does the work, in the set until it has ended: a loop refers to tasks weakly."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
