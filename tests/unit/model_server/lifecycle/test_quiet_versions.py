"""When a model counts as idle, whichever of its versions work is for."""

import asyncio

import pytest

from batchedmodel_model_server.lifecycle.versions import Version, Versions

pytestmark = pytest.mark.looptime


async def test_it_is_quiet_once_no_version_has_had_work_for_so_long() -> None:
    """A pass in an idle moment would hold up batches of the other version, or its load."""
    now = asyncio.get_running_loop().time
    versions, serving, coming = Versions("m"), Version("m", now), Version("m", now)
    versions.add(serving)
    versions.add(coming)
    with serving.at_work():
        assert versions.idle_seconds() == 0
    began = now()
    waiting = asyncio.create_task(versions.quiet(10.0))
    await asyncio.sleep(6)
    assert versions.idle_seconds() == pytest.approx(6)
    with coming.at_work():
        await asyncio.sleep(7)
        assert not waiting.done()
    await asyncio.sleep(8)
    with serving.at_work():
        assert not waiting.done()
    await waiting
    assert now() - began == pytest.approx(6 + 7 + 8 + 10)


async def test_of_what_nothing_was_ever_asked_is_quiet_at_once() -> None:
    async with asyncio.timeout(1):
        await Versions("m").quiet(10.0)
