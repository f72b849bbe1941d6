"""Lists for which the queue has no room: refused by their shapes, before their rows are made."""

import asyncio
from dataclasses import replace

import pytest

from support.handler_world import SETTINGS, body, here, text

pytestmark = pytest.mark.looptime


def listed(rows: int) -> bytes:
    """So many rows of two values each."""
    return body(*range(2 * rows)).replace(b"[1, %d]" % (2 * rows), b"[%d, 2]" % rows)


@pytest.mark.parametrize("known", [True, False])
async def test_a_list_that_finds_no_room_now_is_refused_by_its_shape_alone(known: bool) -> None:
    """Who floods with lists makes others wait for none of their rows."""
    place = await here(replace(SETTINGS, max_queue_size=20), knows=listed(8))
    waiting = [place.world.send(b"a", tenant="127.0.0.1") for _ in range(12)]
    waiting += [place.world.send(b"b", tenant="another") for _ in range(4)]
    await asyncio.sleep(0)
    offered = place.world.ledger.rows_offered
    # Where the form is known, the numbers are not even looked at.
    unknown = listed(8)[:-1] + b', "parameters": {"timeout": 5000000}}'
    place.begin(listed(8).replace(b"15]", b"99999]") if known else unknown)
    await asyncio.sleep(0)
    (told,) = place.told[1:]
    assert told.status == 429
    assert "Retry-After" in dict(told.headers)
    assert "queue is full: 20 rows may wait" in text(told)
    assert place.world.ledger.rows_offered == offered + 8
    await asyncio.gather(*waiting)
    assert (await place.answer(listed(8))).status == 200


async def test_a_list_that_never_finds_room_is_too_large_whoever_waits() -> None:
    place = await here(replace(SETTINGS, max_queue_size=20))
    waiting = [place.world.send(b"a", tenant="another") for _ in range(4)]
    told = await place.answer(listed(21))
    assert told.status == 413
    assert "21 rows in one request are more than the queue holds (20)" in text(told)
    await asyncio.gather(*waiting)
