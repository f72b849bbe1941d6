"""Connections to a server of somebody else's; one on which it spoke unasked is not used again.

Used by both HTTP clients. What a server sends while it was asked nothing would be taken for the
answer to the next request, which is another caller's.
"""

from typing import Any

import aiohttp


class Connector(aiohttp.TCPConnector):
    """Looks at a kept connection before it is used."""

    async def connect(self, *given: Any, **named: Any) -> aiohttp.connector.Connection:
        """A new connection, or a kept one on which nothing has come since its last answer."""
        while True:
            connection = await super().connect(*given, **named)
            protocol = connection.protocol
            if protocol is None or not protocol.should_close:
                return connection
            connection.close()
