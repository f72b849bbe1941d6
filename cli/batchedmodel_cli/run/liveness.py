"""Asks whether a process is alive, as the kubelet asks for a container.

Called by the supervisor. The batcher's admin port answers for both processes.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final

PERIOD_SECONDS: Final = 10.0
FAILURES_IN_A_ROW: Final = 6
STOP_WITHIN_SECONDS: Final = 5.0
"""As a pod's probes have them. What is dead has nothing left to drain."""
_ANSWER_SECONDS: Final = 1.0
_LONGEST_ANSWER: Final = 4096
_ANSWER: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r]*\r\n(?:[^\r]+\r\n)*\r\n(.*)", re.DOTALL)

Address = tuple[str, int]


async def dead(path: str, address: Callable[[], Address | None]) -> str:
    """Return once enough probes in a row have failed; what the last one said.

    `address`: where to ask; None while that is not known, which is no failure.
    """
    failures = 0
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        where = address()
        trouble = None if where is None else await trouble_of(where, path)
        failures = 0 if trouble is None else failures + 1
        if trouble is not None and failures >= FAILURES_IN_A_ROW:
            return trouble


async def trouble_of(address: Address, path: str) -> str | None:
    """What one probe found to be wrong; None if nothing."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            answer = _ANSWER.fullmatch(await _answer(*address, path))
    except TimeoutError:
        return "no answer in time"
    except OSError as error:
        return error.strerror or str(error)
    if answer is None:
        return "an answer that is no HTTP"
    return None if answer[1] == b"200" else answer[2].decode("utf-8", "replace").strip()


async def _answer(host: str, port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        while len(answer) < _LONGEST_ANSWER and (part := await reader.read(_LONGEST_ANSWER)):
            answer += part
        return answer
    finally:
        writer.close()
