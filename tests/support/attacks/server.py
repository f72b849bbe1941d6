"""A server of one's own as a process of its own, until it is killed.

`python -m support.attacks.server SECONDS`, for a batch. It prints where it is, and then now and
then the monotonic time and the longest that a request took since it last said so. What it computes
over large bodies must not delay those who measure.
"""

import asyncio
import sys
import time
from typing import Final

from support.row_server import RowServer

_LOOK_SECONDS: Final = 0.1


async def main(seconds: float) -> None:
    """Serve, and keep little of what came."""
    async with RowServer(seconds=seconds) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if server.took:
                sys.stdout.write(f"{time.monotonic()} {max(server.took)}\n")
                sys.stdout.flush()
            for seen in (server.rows, server.requests, server.bodies, server.took):
                seen.clear()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
