"""Callers that leave while their rows are divided, and requests that nobody expects."""

import asyncio
import gzip
import json
from typing import Any, Final

from support.attacks.aim import ANY, REFUSED, Aim, Kind, Theme

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


@THEME.attack(told=ANY, callers=8)
async def lists_alone_that_leave(aim: Aim) -> None:
    """They are to go to the server by themselves, and nobody waits for their answers."""
    async with aim.connection() as own:
        await own.send(aim.request(aim.body(100), "X-Batch: off"))
        await asyncio.sleep(0.01 * (aim.number() % 5))
        own.reset()


@THEME.attack(told=REFUSED, callers=1, pause=0.3)
async def objects_without_end(aim: Aim) -> None:
    """A few thousand bytes, of which a million objects would be made."""
    name = {Kind.V1: "instances", Kind.OPENAI: "input"}.get(aim.kind, "inputs")
    body = b'{"%s": [%s0]}' % (name.encode(), b'{"":0},' * 1_000_000)
    await aim.asks(gzip.compress(body, 1), "Content-Encoding: gzip")
