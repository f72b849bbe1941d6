"""Requests whose borders or heads are not what the protocol says."""

import asyncio
import gzip
from typing import Final

from support.attacks.aim import REFUSED, SERVED, Aim, Theme

THEME: Final = Theme(name="framing", together=17)
_CHUNKED: Final = "Transfer-Encoding: chunked"


@THEME.attack(told=REFUSED)
async def length_and_chunks(aim: Aim) -> None:
    """Smuggling: two borders of one body."""
    hidden = aim.request(aim.body())
    await aim.says(aim.head(f"Content-Length: {len(hidden) + 5}", _CHUNKED), b"0\r\n\r\n" + hidden)


@THEME.attack(told=REFUSED)
async def chunks_and_length(aim: Aim) -> None:
    """Smuggling, the other way round."""
    await aim.says(aim.head(_CHUNKED, "Content-Length: 4"), b"5c\r\n" + aim.request(aim.body()))


@THEME.attack(told=REFUSED)
async def two_lengths(aim: Aim) -> None:
    """That differ."""
    body = aim.body()
    await aim.says(aim.head(f"Content-Length: {len(body)}", "Content-Length: 1"), body)


@THEME.attack(told=REFUSED)
async def list_of_lengths(aim: Aim) -> None:
    """In one line, and they differ."""
    body = aim.body()
    await aim.says(aim.head(f"Content-Length: {len(body)}, 1"), body)


@THEME.attack(told=REFUSED)
async def signed_length(aim: Aim) -> None:
    """A plus is no digit."""
    body = aim.body()
    await aim.says(aim.head(f"Content-Length: +{len(body)}"), body)


@THEME.attack(told=REFUSED)
async def negative_length(aim: Aim) -> None:
    """Less than nothing."""
    await aim.says(aim.head("Content-Length: -1"), aim.body())


@THEME.attack(told=REFUSED)
async def length_beyond_any_number(aim: Aim) -> None:
    """As long as a head may be."""
    await aim.says(aim.head("Content-Length: " + "9" * 5000), aim.body())


@THEME.attack(told=REFUSED)
async def unknown_transfer_coding(aim: Aim) -> None:
    """Whose end nobody knows."""
    await aim.says(aim.head("Transfer-Encoding: xchunked"), b"0\r\n\r\n")


@THEME.attack(told=REFUSED)
async def chunked_twice(aim: Aim) -> None:
    """Chunks within chunks."""
    await aim.says(aim.head("Transfer-Encoding: chunked, chunked"), b"0\r\n\r\n")


@THEME.attack(told=REFUSED)
async def broken_chunks(aim: Aim) -> None:
    """A size that is no number, once the body has begun."""
    await aim.says(aim.head(_CHUNKED), b'5\r\n{"inp\r\n', b"zz\r\nnonsense\r\n", pause=0.01)


@THEME.attack(told=REFUSED)
async def broken_chunks_where_the_answer_came_early(aim: Aim) -> None:
    """Nobody reads a body that is sent to a path without any."""
    async with aim.connection() as own:
        await own.send(aim.head(_CHUNKED, path="/nowhere") + b"5\r\nhello\r\n")
        aim.told[await own.status()] += 1
        await own.send(b"zz\r\n" * 100)
        await asyncio.sleep(0.2)


@THEME.attack(told=REFUSED)
async def chunk_of_all_memory(aim: Aim) -> None:
    """A size of 16 digits."""
    await aim.says(aim.head(_CHUNKED), b"ffffffffffffffff\r\n{}")


@THEME.attack(told=REFUSED | SERVED)
async def chunks_of_one_byte(aim: Aim) -> None:
    """With an extension each."""
    body = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in aim.body())
    await aim.says(aim.head(_CHUNKED), body + b"0\r\n\r\n")


@THEME.attack(told=REFUSED | SERVED)
async def trailers_without_end(aim: Aim) -> None:
    """Behind the last chunk."""
    body = aim.body()
    whole = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    await aim.says(aim.head(_CHUNKED), whole, b"a: b\r\n" * 20_000)


@THEME.attack(told=REFUSED | SERVED)
async def split_header(aim: Aim) -> None:
    """A line break alone within a value."""
    body = aim.body()
    lines = (f"Content-Length: {len(body)}", "X-Request-Id: a\nX-Priority: 1")
    await aim.says(aim.head(*lines), body)


@THEME.attack(told=REFUSED | SERVED)
async def folded_header(aim: Aim) -> None:
    """A value that goes on in the next line."""
    body = aim.body()
    await aim.says(aim.head(f"Content-Length: {len(body)}", "X-Request-Id: a", " b"), body)


@THEME.attack(told=REFUSED)
async def space_before_the_colon(aim: Aim) -> None:
    """Which some take for another name."""
    body = aim.body()
    await aim.says(aim.head(f"Content-Length : {len(body)}"), body)


@THEME.attack(told=REFUSED)
async def zero_in_a_header(aim: Aim) -> None:
    """A NUL."""
    body = aim.body()
    await aim.says(aim.head(f"Content-Length: {len(body)}", "X-Request-Id: a\0b"), body)


@THEME.attack(told=REFUSED)
async def huge_head(aim: Aim) -> None:
    """300 kB of lines."""
    lines = [f"X-{number}: {'a' * 1000}" for number in range(300)]
    await aim.says(aim.head("Content-Length: 2", *lines), b"{}")


@THEME.attack(told=REFUSED)
async def huge_line(aim: Aim) -> None:
    """One header of 300 kB."""
    await aim.says(aim.head("Content-Length: 2", "X-A: " + "a" * 300_000), b"{}")


@THEME.attack(told=REFUSED)
async def huge_target(aim: Aim) -> None:
    """A path of 100 kB."""
    await aim.says(aim.head("Content-Length: 2", path="/" + "a" * 100_000), b"{}")


@THEME.attack(told=REFUSED)
async def not_http(aim: Aim) -> None:
    """A greeting of TLS."""
    await aim.says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))


@THEME.attack(told=REFUSED | {505})
async def unknown_version(aim: Aim) -> None:
    """Of HTTP."""
    await aim.says(b"POST / HTTP/9.9\r\nHost: x\r\nContent-Length: 0\r\n\r\n")


@THEME.attack(told=REFUSED)
async def preface_of_http_2(aim: Aim) -> None:
    """As clients with prior knowledge send it."""
    await aim.says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))


@THEME.attack()
async def upgrade(aim: Aim) -> None:
    """To what is not spoken here."""
    await aim.asks(aim.body(), "Connection: Upgrade", "Upgrade: websocket")


@THEME.attack(told=REFUSED)
async def tunnel(aim: Aim) -> None:
    """To another host."""
    await aim.says(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")


@THEME.attack()
async def pipelining_behind_errors(aim: Aim) -> None:
    """Good requests behind a bad one."""
    bad = aim.request(b"{", path="/nowhere")
    await aim.says(bad + b"".join(aim.request(aim.body()) for _ in range(20)))


@THEME.attack(told=SERVED | {0}, pause=0.2)
async def pipelining_without_reading(aim: Aim) -> None:
    """A hundred at once, then gone."""
    await aim.says(b"".join(aim.request(aim.body()) for _ in range(100)))


@THEME.attack(told=SERVED | REFUSED | {417})
async def unknown_expectation(aim: Aim) -> None:
    """That nobody can meet."""
    await aim.asks(aim.body(), "Expect: 200-maybe")


@THEME.attack(told=frozenset({0, 100}) | REFUSED)
async def permission_never_used(aim: Aim) -> None:
    """A head that asks whether to go on, then nothing."""
    await aim.says(aim.head("Content-Length: 1000", "Expect: 100-continue"))


@THEME.attack(told=REFUSED)
async def broken_gzip(aim: Aim) -> None:
    """Cut off in the middle."""
    squeezed = gzip.compress(aim.body() + bytes(2000))
    await aim.asks(squeezed[: len(squeezed) // 2], "Content-Encoding: gzip")


@THEME.attack(told=REFUSED)
async def no_gzip_at_all(aim: Aim) -> None:
    """As declared."""
    await aim.asks(aim.body(), "Content-Encoding: gzip")


_BOMB: Final = gzip.compress(bytes(64 * 2**20), 9)


@THEME.attack(told=REFUSED, callers=2, pause=0.2)
async def compressed_bomb(aim: Aim) -> None:
    """64 MiB of nothing in 64 KiB."""
    await aim.asks(_BOMB, "Content-Encoding: gzip")


@THEME.attack(told=REFUSED, callers=2)
async def bombs_without_a_pause(aim: Aim) -> None:
    """Each is refused, and nothing of it may stay."""
    await aim.asks(_BOMB, "Content-Encoding: gzip")


@THEME.attack(told=REFUSED, callers=2, pause=0.2)
async def bomb_in_a_bomb(aim: Aim) -> None:
    """Compressed twice."""
    await aim.asks(gzip.compress(_BOMB), "Content-Encoding: gzip, gzip")
