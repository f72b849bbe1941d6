"""When the watching begins anew, when it ends, and that no signal is lost and no timer kills it.

Kopf is the real one, in virtual time and without a server: it never gets past its login.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import kopf
import pytest

from batchedmodel_operator.cluster.handlers import watch
from batchedmodel_operator.cluster.watching import Definition, keep_watching, listen, until_all_end

Watch = Callable[[Definition, asyncio.Event], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def survivor() -> Iterator[None]:
    """A signal that nobody handles is lost, as in an operator with dead handlers."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def _served() -> bool:
    return True


async def _hangs() -> bool:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


class _Panic(BaseException):
    pass


@pytest.mark.looptime
@pytest.mark.parametrize("kind", [OSError, _Panic])
async def test_watching_that_fails_begins_anew_until_it_ends_by_itself(
    kind: type[BaseException],
) -> None:
    attempts = 0

    async def watch(definition: Definition, stop: asyncio.Event) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise kind("the kind is gone")

    await keep_watching(watch, _served, asyncio.Event())
    assert attempts == 3


@pytest.mark.looptime
async def test_a_definition_that_comes_back_ends_the_watching_and_begins_it_anew() -> None:
    attempts = 0

    async def watch(definition: Definition, stop: asyncio.Event) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            definition.changed(established=False)
            definition.changed(established=True)
            await stop.wait()

    await keep_watching(watch, _served, asyncio.Event())
    assert attempts == 2


def _fails(told: asyncio.Event) -> Watch:
    async def watch(definition: Definition, stop: asyncio.Event) -> None:
        asyncio.get_running_loop().call_later(1.0, told.set)
        raise OSError("the kind is gone")

    return watch


def _watches(told: asyncio.Event) -> Watch:
    async def watch(definition: Definition, stop: asyncio.Event) -> None:
        asyncio.get_running_loop().call_later(1.0, told.set)
        await stop.wait()

    return watch


def _asked_to_begin_anew(told: asyncio.Event) -> Watch:
    async def watch(definition: Definition, stop: asyncio.Event) -> None:
        definition.changed(established=False)
        definition.changed(established=True)
        await stop.wait()
        told.set()

    return watch


@pytest.mark.looptime
@pytest.mark.parametrize("first", [_fails, _watches, _asked_to_begin_anew])
async def test_watching_is_not_begun_anew_after_a_stop(
    first: Callable[[asyncio.Event], Watch],
) -> None:
    told = asyncio.Event()
    begun = 0

    async def watch(definition: Definition, stop: asyncio.Event) -> None:
        nonlocal begun
        begun += 1
        if begun > 1:
            await asyncio.Event().wait()
        await first(told)(definition, stop)

    async with asyncio.timeout(1.5):
        await keep_watching(watch, _served, told)
    assert begun == 1


@pytest.mark.looptime
async def test_a_stop_does_not_wait_for_an_api_server_that_hangs() -> None:
    async def watch(definition: Definition, stop: asyncio.Event) -> None:
        raise AssertionError("it was told to stop before")

    told = asyncio.Event()
    asyncio.get_running_loop().call_later(1.0, told.set)
    async with asyncio.timeout(1.5):
        await keep_watching(watch, _hangs, told)


@pytest.mark.looptime
@pytest.mark.parametrize("gone", ["never there", "deleted"])
async def test_watching_begins_anew_once_a_returned_definition_is_served(gone: str) -> None:
    definition = Definition(served=gone == "deleted")
    looks = iter([False, False, True])

    async def served() -> bool:
        return next(looks)

    returned = asyncio.create_task(definition.returned(served))
    if gone == "deleted":
        definition.changed(established=False)
    await asyncio.sleep(10)
    assert not returned.done()
    definition.changed(established=True)
    await returned
    assert list(looks) == []


@pytest.mark.looptime
async def test_a_definition_that_was_served_all_along_disturbs_nobody() -> None:
    definition = Definition(served=True)

    async def served() -> bool:
        return True

    returned = asyncio.create_task(definition.returned(served))
    definition.changed(established=True)
    await asyncio.sleep(10)
    assert not returned.done()
    returned.cancel()


def _kopf_at_its_login(asked: asyncio.Event) -> kopf.OperatorRegistry:
    """Sets `asked` and then waits for a login that never ends, without a server."""
    found = kopf.OperatorRegistry()

    @kopf.on.startup(registry=found)
    async def spare_the_test_process(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.process.ultimate_exiting_timeout = None

    @kopf.on.login(registry=found)
    async def login(**_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    return found


@pytest.mark.looptime
@pytest.mark.parametrize("number", _SIGNALS)
@pytest.mark.parametrize("moment", ["before", "while it runs", "after"])
async def test_a_signal_is_heard_before_kopf_runs_and_while_and_after(
    moment: str, number: signal.Signals
) -> None:
    told, asked, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    listen(told)
    running = asyncio.create_task(
        watch(
            _kopf_at_its_login(asked),
            stop=stop,
            take_signals=lambda: listen(told),
        )
    )
    try:
        if moment != "before":
            await asked.wait()
        if moment == "after":
            stop.set()
            await running
        os.kill(os.getpid(), number)
        async with asyncio.timeout(1):
            await told.wait()
    finally:
        stop.set()
        await running


_AN_HOUR_AFTER_A_FAILURE = """
import asyncio
import looptime
from batchedmodel_operator.cluster.handlers import registry, watch
from batchedmodel_operator.cluster.watching import keep_watching, listen

async def main():
    told = asyncio.Event()
    attempts = 0

    async def kopf_without_a_login(definition, stop):
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            await asyncio.sleep(3600)
            return
        found = registry(lambda key: None, definition.changed)
        await watch(found, stop=stop, take_signals=lambda: listen(told))

    async def served():
        return True

    await keep_watching(kopf_without_a_login, served, told)
    print(attempts, "attempts")

with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
    runner.run(main())
"""


@pytest.mark.slow
def test_no_timer_of_a_watching_that_failed_kills_the_one_that_began_anew(
    tmp_path: Path,
) -> None:
    """In virtual time, and in a process of its own: Kopf's way to end one is SIGKILL."""
    ended = subprocess.run(
        [sys.executable, "-c", _AN_HOUR_AFTER_A_FAILURE],
        env={name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "2 attempts\n"), ended.stderr[-4000:]


@pytest.mark.looptime
async def test_a_task_of_kopfs_that_loses_its_cancellation_is_cancelled_again() -> None:
    async def loses_it() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def ends_of_itself() -> None:
        await asyncio.sleep(100.0)
        raise OSError("the kind is gone")

    others = asyncio.all_tasks()
    root, watcher = asyncio.create_task(ends_of_itself()), asyncio.create_task(loses_it())

    async def run_tasks() -> None:
        await asyncio.wait((root,))
        watcher.cancel()
        await asyncio.wait((watcher,))
        await root

    ours = asyncio.create_task(asyncio.Event().wait())
    began = asyncio.get_running_loop().time()
    with pytest.raises(OSError, match="the kind is gone"):
        await until_all_end(run_tasks(), (root,), others)
    assert asyncio.get_running_loop().time() - began == 110.0
    assert watcher.cancelled()
    assert not ours.cancelling(), "nobody had cancelled it"
    ours.cancel()
