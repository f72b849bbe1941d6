"""Whose request it is: the address of the connection that it came on."""

import asyncio
from contextlib import closing

from batchedmodel_http.connection import Connection, HeadCache
from batchedmodel_http.request_head import RequestHead
from support.door_world import PretendFront, PretendHouse

REQUEST = b"POST /call HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


async def test_the_front_is_told_the_address_of_each_connection() -> None:
    loop = asyncio.get_running_loop()
    front, host = PretendFront(), PretendHouse()
    headings = HeadCache(loop, RequestHead)
    server = await loop.create_server(
        lambda: Connection(host, front, headings, loop), "127.0.0.1", 0
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        for source in ("127.0.0.1", "127.0.0.2"):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(source, 0)
            )
            with closing(writer):
                writer.write(REQUEST)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await writer.wait_closed()
    assert front.addresses == ["127.0.0.1", "127.0.0.2"]
