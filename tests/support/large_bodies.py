"""Bodies of many mebibytes, those who send them, and the helper that reads them."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from support.chain import Chain

MEBIBYTE: Final = 1_048_576
LARGEST: Final = 1_048_576
"""Numbers that make a body of thirteen mebibytes."""
_TWELVE_DIGITS: Final = 10**11
_POSTS: Final = """
import http.client, pathlib, sys
port, path, body = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]).read_bytes()
while True:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", path, body)
    response = connection.getresponse()
    response.read()
    connection.close()
    print(response.status, flush=True)
"""


def numbers(count: int, start: int = _TWELVE_DIGITS) -> list[int]:
    """As many different ones."""
    return list(range(start, start + count))


def v2_body(*rows: list[int], **more: Any) -> bytes:
    """A body of thirteen bytes for each number."""
    data = ",".join(str(number) for row in rows for number in row)
    shape = [len(rows), len(rows[0])]
    entry = f'{{"name":"x","datatype":"INT64","shape":{shape},"data":[{data}]}}'
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in more.items())
    return f'{{"inputs":[{entry}]{rest}}}'.encode()


async def helper_of(chain: Chain, *, after: int = 0) -> int:
    """The process that the sidecar started, as its log says in a line from `after` on."""
    found = await chain.sidecar.wait_for(r"started a helper.*process (\d+)", after=after)
    return int(found[1])


def children_of(pid: int) -> list[int]:
    """The processes that it started and that were not laid to rest."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.asynccontextmanager
async def posting(chain: Chain, path: str, body: Path, status: int = 200) -> AsyncIterator[None]:
    """Meanwhile another process posts the body again and again, and at least twice.

    Each answer must be of that status.
    """
    command = [sys.executable, "-c", _POSTS, str(chain.port), path, str(body)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"%d\n" % status
        yield
        assert await process.stdout.readline() == b"%d\n" % status
    finally:
        process.kill()
        await process.wait()
