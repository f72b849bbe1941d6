"""Keeps the watching up. The work goes on meanwhile, and each new watching lists everything."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Final, TypeVar

from batchedmodel_kube.errors import ENDINGS

_log: Final = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
_ENDING_SECONDS: Final = 10.0
"""That Kopf's tasks have to end before those that lost their cancellation get another."""
_CLOSED_SECONDS: Final = 10.0
"""Between two looks at namespaces that were closed: a Role that comes makes no event for us."""
_T = TypeVar("_T")

IsOpen = Callable[[str], Coroutine[Any, Any, bool | None]]
"""Whether the account may list BatchedModels in a namespace; None when that cannot be told now."""


class Definition:
    """Whether the definition of what is watched went and came back.

    Kopf looks for the kind at the moment when its definition changes. An API server lists a kind
    some time after its definition is established, and Kopf never repeats a look that was too early.
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

    `watch` reports what it sees of the definition and ends once its event is set. `served`: whether
    the API server lists the kind. Kopf gives up altogether when one of its requests fails for good,
    such as for a watched kind that vanishes between two of them.
    """

    async def once() -> bool:
        there = await unless(told, served())
        if there is None:
            return False
        definition = Definition(served=there)
        returned = definition.returned(served)
        if not await _watch_until(returned, lambda stop: watch(definition, stop), told):
            return False
        _log.info("the custom resource has come back: watching anew")
        return True

    await _again_and_again(once, told)


async def keep_watching_in(
    namespaces: Sequence[str],
    watch: Callable[[Sequence[str], asyncio.Event], Awaitable[None]],
    is_open: IsOpen,
    told: asyncio.Event,
) -> None:
    """Watch those of the namespaces that are open until `told` to stop.

    Begins anew when it fails, and when another namespace opens. `watch` ends once its event is set.
    One namespace that was deleted, and its Role with it, must not end the watching of the others.
    """

    async def answers(of: Sequence[str]) -> list[bool | None]:
        return await asyncio.gather(*(is_open(namespace) for namespace in of))

    async def opened(closed: Sequence[str]) -> None:
        while not any(await answers(closed)):  # noqa: ASYNC110  # it can only be asked
            await asyncio.sleep(_CLOSED_SECONDS)

    async def once() -> bool:
        found = await unless(told, answers(namespaces))
        if found is None:
            return False
        pairs = list(zip(namespaces, found, strict=True))
        closed = [namespace for namespace, is_open in pairs if is_open is False]
        there = [namespace for namespace, is_open in pairs if is_open is not False]
        if closed:
            _log.warning("not watched, for want of the namespace or of a Role in it: %s", closed)

        async def watch_there(stop: asyncio.Event) -> None:
            # Kopf takes no namespaces at all for a mistake.
            await (watch(there, stop) if there else stop.wait())

        if not await _watch_until(opened(closed), watch_there, told):
            return False
        _log.info("another namespace can be watched: watching anew")
        return True

    await _again_and_again(once, told)


async def until_all_end(
    running: Coroutine[Any, Any, None],
    roots: Collection[asyncio.Task[Any]],
    others: Collection[asyncio.Task[Any]],
) -> None:
    """Run Kopf until all of its tasks have ended. Its end begins when the first of `roots` ends.

    Kopf cancels each task once and waits for it without a limit. A watcher whose session is closed
    in that moment loses its cancellation and waits for credentials for ever. So the tasks that are
    left ten seconds later are cancelled again. `others` are our own tasks and left alone.
    """
    run = asyncio.create_task(running)
    try:
        await asyncio.wait((run, *roots), return_when=asyncio.FIRST_COMPLETED)
        while not run.done():
            await asyncio.wait((run,), timeout=_ENDING_SECONDS)
            for task in asyncio.all_tasks() - {run, *others}:
                if task.cancelling():
                    task.cancel()
        await run
    finally:
        run.cancel()


def listen(told: asyncio.Event) -> None:
    """SIGTERM and SIGINT set it from now on, whoever heard them before."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)


async def unless(told: asyncio.Event, waiting: Coroutine[Any, Any, _T]) -> _T | None:
    """What it returns; None, and it is given up, when we are `told` to stop before that."""
    task, telling = asyncio.create_task(waiting), asyncio.create_task(told.wait())
    try:
        await asyncio.wait((task, telling), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        telling.cancel()


async def _again_and_again(once: Callable[[], Awaitable[bool]], told: asyncio.Event) -> None:
    """Until we are `told` to stop, or `once` ended and says that there is no reason for more."""
    while not told.is_set():
        try:
            if not await once():
                return
        except ENDINGS:
            raise
        except BaseException as error:
            _log.warning("watching failed: %r; again in %.0f s", error, _AGAIN_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), _AGAIN_SECONDS)


async def _watch_until(
    reason: Coroutine[Any, Any, None],
    watch: Callable[[asyncio.Event], Awaitable[None]],
    told: asyncio.Event,
) -> bool:
    """Watch until `told` to stop, or until there is a `reason` to begin anew: whether it was that.

    Our tasks are made before Kopf's own, which it tells from those of others by what is there.
    """
    stop = asyncio.Event()
    telling, beginning = asyncio.create_task(told.wait()), asyncio.create_task(reason)
    for end in (telling, beginning):
        end.add_done_callback(lambda _: stop.set())
    try:
        await watch(stop)
        if not beginning.done():
            return False
        await beginning
    finally:
        telling.cancel()
        beginning.cancel()
    return True
