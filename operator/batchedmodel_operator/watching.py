"""Keeps the watching up. The work goes on meanwhile, and whoever begins anew lists everything."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

_log: Final = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
_T = TypeVar("_T")


class Definition:
    """Whether the definition of what is watched went and came back.

    Kopf looks for the kind just when its definition changes. An API server lists a kind some time
    after its definition is established, and a look that came too early is never repeated.
    """

    def __init__(self, *, served: bool) -> None:
        """`served`: the kind was listed when the watching began."""
        self._missing = not served
        self._returned = asyncio.Event()

    def changed(self, established: bool) -> None:
        """It was seen; `established` is False when it is gone, too."""
        if not established:
            self._missing = True
        elif self._missing:
            self._returned.set()

    async def returned(self, served: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it has come back and the API server lists its kind, as `served` says."""
        await self._returned.wait()
        while not await served():  # noqa: ASYNC110  # it can only be asked
            await asyncio.sleep(_LOOK_SECONDS)


async def keep_watching(
    watch: Callable[[Definition, asyncio.Event], Awaitable[None]],
    served: Callable[[], Coroutine[Any, Any, bool]],
    told: asyncio.Event,
) -> None:
    """Watch until `told` to stop; begin anew when it fails, and when the definition came back.

    `watch` reports what it sees of the definition and ends once its event is set. `served`: as
    `Definition.returned` asks it. Kopf gives up altogether when one of its requests fails for good,
    such as for a watched kind that vanishes between two of them.
    """
    while not told.is_set():
        try:
            if not await _watch_once(watch, served, told):
                return
        except Exception as error:
            _log.warning("watching failed: %r; again in %.0f s", error, _AGAIN_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), _AGAIN_SECONDS)


def listen(told: asyncio.Event) -> None:
    """SIGTERM and SIGINT set it from now on, whoever heard them before."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)


async def _watch_once(
    watch: Callable[[Definition, asyncio.Event], Awaitable[None]],
    served: Callable[[], Coroutine[Any, Any, bool]],
    told: asyncio.Event,
) -> bool:
    """Whether it ended because the definition has come back."""
    there = await unless(told, served())
    if there is None:
        return False
    definition = Definition(served=there)
    stop = asyncio.Event()
    # Before Kopf's own tasks, which it tells from those of others by what is there already.
    telling = asyncio.create_task(told.wait())
    returned = asyncio.create_task(definition.returned(served))
    for end in (telling, returned):
        end.add_done_callback(lambda _: stop.set())
    try:
        await watch(definition, stop)
        if not returned.done():
            return False
        await returned
    finally:
        telling.cancel()
        returned.cancel()
    _log.info("the custom resource has come back: watching anew")
    return True


async def unless(told: asyncio.Event, waiting: Coroutine[Any, Any, _T]) -> _T | None:
    """What it returns; None, and it is given up, when we are `told` to stop before that."""
    task = asyncio.create_task(waiting)
    telling = asyncio.create_task(told.wait())
    try:
        await asyncio.wait((task, telling), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        telling.cancel()
