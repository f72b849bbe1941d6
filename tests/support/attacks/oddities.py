"""Callers that leave while their rows are divided, and requests that nobody expects."""

import asyncio
import json
from typing import Any, Final

from support.attacks.aim import ANY, Aim, Kind, Theme

THEME: Final = Theme(name="oddities", together=4)
_TENSORS: Final = frozenset({Kind.OURS, Kind.V2})
_VALUES: Final[list[Any]] = [None, True, 1e308, "", [], {}, [[]], [None], {"": {"": []}}, -(2**63)]


@THEME.attack(told=ANY, callers=6)
async def leaving_while_the_answer_is_cut(aim: Aim) -> None:
    """Large answers whose caller has gone when they are divided."""
    async with aim.connection() as own:
        await own.send(aim.request(aim.body(4, 20_000)))
        await asyncio.sleep(0.01 * (aim.number() % 30))
        own.reset()


@THEME.attack(told=ANY, callers=8)
async def lists_that_leave_half_way(aim: Aim) -> None:
    """Rows are at the server, waiting and unseen when their caller goes."""
    async with aim.connection() as own:
        await own.send(aim.request(aim.body(200, 2)))
        await asyncio.sleep(0.02 * (aim.number() % 10))
        own.reset()


@THEME.attack(told=ANY, callers=8)
async def rows_of_all_lengths_and_kinds(aim: Aim) -> None:
    """No two share a batch, and each list has one place in each class of lengths."""
    for power in range(1, 12):
        more = {f"p{aim.number()}": power}
        asked = {"parameters": more} if aim.kind in _TENSORS else more
        await aim.asks(aim.body(1, 2**power, **asked), f"X-Request-Group: g;n={power}")


@THEME.attack(told=ANY, callers=4)
async def members_of_the_wrong_type(aim: Aim) -> None:
    """Every value of a good request replaced by each of these."""
    good = json.loads(aim.body())
    for value in _VALUES:
        for name in good:
            await aim.asks(json.dumps(good | {name: value}).encode())
