"""More than one's share of good requests, and what makes each of them dear."""

import asyncio
import gzip
from typing import Final

from support.attacks.aim import SERVED, Aim, Kind, Theme

THEME: Final = Theme(name="floods", together=4)
_FLOOD: Final = SERVED | {0, 400, 413}
_TENSORS: Final = frozenset({Kind.OURS, Kind.V2})
_BESIDE: Final = {
    Kind.V2: "/v2/models/other/infer",
    Kind.V1: "/v1/models/m:explain",
    Kind.OPENAI: "/v1/score",
}
"""Inferences of another kind or model."""


async def _asks_on(aim: Aim, requests: list[bytes]) -> None:
    """One after the other over one connection."""
    async with aim.connection() as own:
        for request in requests:
            await own.send(request)
            aim.told[await own.status()] += 1


@THEME.attack(callers=1)
async def sleeping(aim: Aim) -> None:
    """Nothing at all: what the others are compared with."""
    await asyncio.sleep(60.0)


@THEME.attack(told=_FLOOD, callers=100, pause=0.0)
async def singles(aim: Aim) -> None:
    """A hundred callers, one row each time."""
    await _asks_on(aim, [aim.request(aim.body()) for _ in range(20)])


@THEME.attack(told=_FLOOD, callers=32)
async def lists(aim: Aim) -> None:
    """A hundred rows each time."""
    await _asks_on(aim, [aim.request(aim.body(100)) for _ in range(5)])


@THEME.attack(told=_FLOOD, callers=32, kinds=frozenset(_BESIDE))
async def inferences_beside_the_batched_one(aim: Aim) -> None:
    """A hundred rows each time, which no batch takes."""
    request = aim.request(aim.body(100), path=_BESIDE[aim.kind])
    await _asks_on(aim, [request] * 5)


@THEME.attack(told=_FLOOD, callers=2, pause=0.05)
async def rows_beyond_the_queue(aim: Aim) -> None:
    """More in one request than may ever wait; to make them all would take a second."""
    await aim.asks(aim.body(20_000))


@THEME.attack(told=_FLOOD, callers=100)
async def short_time_outs(aim: Aim) -> None:
    """Patience of a second buys no priority."""
    limit = "X-Request-Timeout-Ms: 1000"
    await _asks_on(aim, [aim.request(aim.body(4), limit) for _ in range(10)])


@THEME.attack(told=_FLOOD, callers=50)
async def no_patience_at_all(aim: Aim) -> None:
    """A millisecond."""
    await aim.asks(aim.body(), "X-Request-Timeout-Ms: 1")


@THEME.attack(told=_FLOOD, callers=8)
async def long_texts(aim: Aim) -> None:
    """Rows of fifty thousand values."""
    await aim.asks(aim.body(1, 50_000))


@THEME.attack(told=_FLOOD, callers=4, pause=0.1)
async def large_json(aim: Aim) -> None:
    """Three megabytes, which keep a reader busy."""
    await aim.asks(aim.body(6, 150_000))


@THEME.attack(told=_FLOOD, callers=4, pause=0.1)
async def large_compressed_json(aim: Aim) -> None:
    """Three megabytes in little."""
    await aim.asks(gzip.compress(aim.body(6, 150_000), 1), "Content-Encoding: gzip")


@THEME.attack(told=_FLOOD, callers=16)
async def many_parameters(aim: Aim) -> None:
    """Each request differs from all others, so no two share a batch."""
    if aim.kind in _TENSORS:
        await aim.asks(aim.body(parameters={f"p{aim.number()}": 1}))
    else:
        await aim.asks(aim.body(**{f"p{aim.number()}": 1}))


@THEME.attack(told=_FLOOD, callers=2, pause=0.05)
async def large_parameters(aim: Aim) -> None:
    """A megabyte that tells a key from all others."""
    secret = f"{aim.number()}" + "s" * 1_000_000
    if aim.kind in _TENSORS:
        await aim.asks(aim.body(parameters={"secret": secret}))
    else:
        await aim.asks(aim.body(secret=secret))


@THEME.attack(told=_FLOOD, callers=32, kinds=_TENSORS)
async def many_lengths(aim: Aim) -> None:
    """Each row as long as no other."""
    await aim.asks(aim.body(1, 2 + aim.number() % 500))


@THEME.attack(told=_FLOOD, callers=16)
async def groups_that_never_fill(aim: Aim) -> None:
    """One row of a group of thousands."""
    await aim.asks(aim.body(), f"X-Request-Group: g{aim.number()};n=4096")


@THEME.attack(told=_FLOOD, callers=16)
async def highest_priority(aim: Aim) -> None:
    """Which nobody granted."""
    await aim.asks(aim.body(4), "X-Priority: 1", "X-Request-Priority: 1")


@THEME.attack(told=_FLOOD, callers=32)
async def many_tenants(aim: Aim) -> None:
    """A name of its own for each request."""
    name = f"t{aim.number()}"
    await aim.asks(aim.body(), f"X-Tenant: {name}", f"X-Forwarded-For: 10.0.0.1, {name}")


@THEME.attack(told=_FLOOD | frozenset({404}), callers=16, kinds=_TENSORS)
async def many_versions(aim: Aim) -> None:
    """Of the model, none of which is there."""
    path = f"/v2/models/m/versions/{aim.number()}/infer"
    await aim.asks(aim.body(), path=path)


@THEME.attack(told=_FLOOD, callers=32, pause=0.0)
async def a_connection_for_each(aim: Aim) -> None:
    """Nothing is kept."""
    await aim.asks(aim.body(), "Connection: close")
