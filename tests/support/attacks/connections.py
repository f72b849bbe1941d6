"""Callers who are slow, who do not read, who leave in every phase, and who come in crowds."""

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Final

from support.attacks.aim import ANY, REFUSED, SERVED, Aim, Kind, Theme

THEME: Final = Theme(name="connections", together=10)
_TENSORS: Final = frozenset({Kind.OURS, Kind.V2})


@THEME.attack(callers=50)
async def slow_heads(aim: Aim) -> None:
    """A byte now and then."""
    async with aim.connection() as own:
        for byte in aim.head("Content-Length: 2"):
            await own.send(bytes([byte]))
            await asyncio.sleep(0.2)
        aim.told[await own.status()] += 1


@THEME.attack(callers=1)
async def heads_that_never_end(aim: Aim) -> None:
    """Two hundred of them, each of which costs its reader ten times its bytes."""
    fields = [f"X-{number}: {'a' * 20}" for number in range(110)]
    head = aim.head("Transfer-Encoding: chunked", *fields).removesuffix(b"\r\n")
    async with AsyncExitStack() as stack:
        for _ in range(200):
            own = await stack.enter_async_context(aim.connection())
            await own.send(head)
        await asyncio.sleep(1.0)


@THEME.attack(callers=50)
async def slow_bodies(aim: Aim) -> None:
    """Of which a byte now and then comes."""
    whole = aim.request(aim.body())
    async with aim.connection() as own:
        await own.send(whole[:-20])
        for byte in whole[-20:]:
            await own.send(bytes([byte]))
            await asyncio.sleep(0.2)
        aim.told[await own.status()] += 1


@THEME.attack(callers=8)
async def bodies_that_stop(aim: Aim) -> None:
    """A megabyte is declared, and half of it comes."""
    async with aim.connection() as own:
        await own.send(aim.head(f"Content-Length: {2**20}") + b" " * 2**19)
        await asyncio.sleep(1.0)


@THEME.attack(callers=1)
async def many_connections(aim: Aim) -> None:
    """Three hundred that say nothing."""
    async with AsyncExitStack() as stack:
        for _ in range(300):
            await stack.enter_async_context(aim.connection())
        await asyncio.sleep(1.0)


@THEME.attack(callers=8, pause=0.0)
async def comers_and_goers(aim: Aim) -> None:
    """Who say nothing at all."""
    async with aim.connection() as own:
        own.reset()
    await asyncio.sleep(0.002)


async def _half_closed(aim: Aim, data: bytes) -> None:
    async with aim.connection() as own:
        await own.send(data)
        own.writer.write_eof()
        aim.told[await own.status()] += 1


@THEME.attack()
async def half_closed_before_a_word(aim: Aim) -> None:
    """Only to listen."""
    await _half_closed(aim, b"")


@THEME.attack()
async def half_closed_in_the_head(aim: Aim) -> None:
    """In the middle of it."""
    await _half_closed(aim, aim.head("Content-Length: 2")[:-9])


@THEME.attack()
async def half_closed_in_the_body(aim: Aim) -> None:
    """In the middle of it."""
    await _half_closed(aim, aim.request(aim.body())[:-9])


@THEME.attack(told=SERVED | {0})
async def half_closed_behind_the_request(aim: Aim) -> None:
    """As some clients do that ask once."""
    await _half_closed(aim, aim.request(aim.body()))


async def _resets(aim: Aim, data: bytes, wait: float) -> None:
    async with aim.connection() as own:
        await own.send(data)
        await asyncio.sleep(wait)
        own.reset()


@THEME.attack()
async def reset_in_the_head(aim: Aim) -> None:
    """In the middle of it."""
    await _resets(aim, aim.head("Content-Length: 2")[:-9], 0.01)


@THEME.attack()
async def reset_in_the_body(aim: Aim) -> None:
    """In the middle of it."""
    await _resets(aim, aim.request(aim.body())[:-9], 0.01)


@THEME.attack(callers=4)
async def reset_in_a_large_body(aim: Aim) -> None:
    """Behind seven megabytes of it, which nobody counts any more."""
    await _resets(aim, aim.head(f"Content-Length: {8 * 10**6}") + b" " * 7 * 10**6, 0.05)


@THEME.attack()
async def reset_in_a_chunk(aim: Aim) -> None:
    """In the middle of it."""
    await _resets(aim, aim.head("Transfer-Encoding: chunked") + b"ff\r\n{", 0.01)


@THEME.attack()
async def reset_at_once(aim: Aim) -> None:
    """Behind the request."""
    await _resets(aim, aim.request(aim.body()), 0.0)


@THEME.attack()
async def reset_while_waiting(aim: Aim) -> None:
    """In the queue."""
    await _resets(aim, aim.request(aim.body(4)), 0.003)


@THEME.attack()
async def reset_in_the_batch(aim: Aim) -> None:
    """While it runs, or about when it is answered."""
    await _resets(aim, aim.request(aim.body(4)), 0.015)


@THEME.attack(pause=0.1)
async def leaving_from_a_pipeline(aim: Aim) -> None:
    """With twenty requests on the way."""
    await _resets(aim, b"".join(aim.request(aim.body()) for _ in range(20)), 0.01)


@THEME.attack(kinds=_TENSORS)
async def reset_in_the_answer(aim: Aim) -> None:
    """A little of it read."""
    async with aim.connection(window=4096) as own:
        await own.send(aim.request(aim.body(1, 20_000)))
        await own.reader.read(100)
        own.reset()


@THEME.attack(callers=24, kinds=_TENSORS, told=ANY)
async def unread_answers(aim: Aim) -> None:
    """Of a megabyte each."""
    async with aim.connection(window=4096) as own:
        await own.send(aim.request(aim.body(1, 500_000)))
        await asyncio.sleep(10.0)


@THEME.attack(callers=8, kinds=_TENSORS)
async def answers_read_slowly(aim: Aim) -> None:
    """A few bytes now and then."""
    async with aim.connection(window=4096) as own:
        await own.send(aim.request(aim.body(1, 100_000)))
        for _ in range(20):
            await own.reader.read(1000)
            await asyncio.sleep(0.1)


@THEME.attack(told=REFUSED)
async def urgent_bytes(aim: Aim) -> None:
    """Out of band, in the middle of nonsense."""
    async with aim.connection() as own:
        await own.send(b"POST / HTTP/1.1\r\n")
        urgent = socket.fromfd(own.writer.get_extra_info("socket").fileno(), 2, 1)
        with urgent:
            urgent.send(b"!", socket.MSG_OOB)
        await own.send(b"\r\n\r\n")
        aim.told[await own.status()] += 1


@THEME.attack(told=ANY, callers=200)
async def bytes_sent_far_ahead(aim: Aim) -> None:
    """Half a megabyte behind a call that waits."""
    # One row: that its caller has left stands behind bytes that nobody reads, so it is computed.
    async with aim.connection() as own:
        own.writer.write(aim.request(aim.body()) + b"x" * 500_000)
        aim.told[await own.status()] += 1
