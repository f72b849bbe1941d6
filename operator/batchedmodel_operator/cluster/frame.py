"""Kopf as the operator's frame: it takes the signals, and begins and ends the work.

What there is in the cluster is watched by `kube`'s informer, so no handler of Kopf's is about an
object, and Kopf itself gets no credentials: it asks the API server for nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, NoReturn

import kopf


class _EveryTask(Collection[asyncio.Task[Any]]):
    """Kopf would cancel whatever task is left when it ends; without objects it has none itself."""

    def __contains__(self, task: object) -> bool:
        return True

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(asyncio.all_tasks())

    def __len__(self) -> int:
        return len(asyncio.all_tasks())


async def in_frame(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `work` until SIGTERM or SIGINT, which set its event; raises what it raises."""
    registry, stop = kopf.OperatorRegistry(), asyncio.Event()

    async def whole() -> None:
        try:
            await work(stop)
        finally:
            # Kopf ends with it, whatever ended it.
            stop.set()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    @kopf.on.startup(registry=registry)
    async def begin(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        # Kopf would kill the process so long after its end. Whoever stops us has a grace period.
        settings.process.ultimate_exiting_timeout = None

    running = asyncio.create_task(whole(), name="work")

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        stop.set()
        await asyncio.wait((running,))

    tasks = await kopf.spawn_tasks(
        registry=registry, clusterwide=True, standalone=True, stop_flag=stop
    )
    await kopf.run_tasks(tasks, ignored=_EveryTask())
    await running
