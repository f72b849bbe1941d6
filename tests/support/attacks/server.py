"""A server of one's own as a process of its own, until it is killed; it prints where it is.

`python -m support.attacks.server SECONDS`, for a batch. What it computes over large bodies must not
delay those who measure.
"""

import asyncio
import sys
from typing import Final

from support.row_server import RowServer

_FORGETS_SECONDS: Final = 1.0


async def main(seconds: float) -> None:
    """Serve, and keep little of what came."""
    async with RowServer(seconds=seconds) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        while True:
            await asyncio.sleep(_FORGETS_SECONDS)
            for seen in (server.rows, server.requests, server.bodies):
                seen.clear()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
