"""No part of an autoscaler ends alone: it ends with all of them, and says why."""

import asyncio
import logging

import pytest

from batchedmodel_autoscaler import __main__ as entry
from batchedmodel_autoscaler.service import last

SETTINGS = {
    "BATCHEDMODEL_NAMESPACE": "ns",
    "BATCHEDMODEL_SERVICE_NAME": "svc",
    "BATCHEDMODEL_DEPLOYMENT_NAME": "svc",
}


async def for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cancelled")


class Panic(BaseException):
    """Of a library in another language."""


async def after(seconds: float, failure: BaseException | None = None) -> None:
    await asyncio.sleep(seconds)
    if failure is not None:
        raise failure


@pytest.mark.looptime
async def test_what_is_done_once_may_end_and_all_goes_on_until_it_is_told_to_stop() -> None:
    ended: list[str] = []
    loop = asyncio.get_running_loop()
    await last([for_ever(ended), for_ever(ended)], once=after(1), until=after(100))
    assert loop.time() == 100
    assert ended == ["cancelled"] * 2


@pytest.mark.looptime
@pytest.mark.parametrize("failure", [ValueError("a bug"), Panic("a bug")])
@pytest.mark.parametrize("which", ["lasting", "once", "lasting after once"])
async def test_a_part_that_fails_ends_all_and_is_raised(which: str, failure: BaseException) -> None:
    ended: list[str] = []
    failing, parts = after(5, failure), [for_ever(ended)]
    if which == "once":
        once = failing
    else:
        parts.append(failing)
        once = after(1 if which == "lasting after once" else 10)
    with pytest.RaisesGroup(pytest.RaisesExc(type(failure), match="a bug")):
        await last(parts, once=once, until=after(100))
    assert asyncio.get_running_loop().time() == 5
    assert ended == ["cancelled"]


@pytest.mark.looptime
async def test_a_part_that_ends_by_itself_is_a_failure_too() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="after")):
        await last([for_ever([]), after(5)], once=after(1), until=after(100))


@pytest.mark.looptime
async def test_who_gives_it_up_leaves_nothing_behind() -> None:
    ended: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await last([for_ever(ended)], once=after(1), until=after(100))
    assert ended == ["cancelled"]


def test_the_process_says_what_failed_and_ends_with_a_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(settings: object) -> None:
        raise ValueError("a bug")

    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(entry, "_run", fails)
    assert entry.main() == entry.EXIT_FAILED
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "failed unexpectedly" in line.getMessage()
    assert "a bug" in caplog.text
