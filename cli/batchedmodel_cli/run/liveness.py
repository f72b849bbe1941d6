"""Asks whether a process is alive, as the kubelet asks for a container.

Called by the supervisor. The batcher's admin port answers for both processes.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from batchedmodel_kube.admin_client import AdminClient, NoAnswer

PERIOD_SECONDS: Final = 10.0
FAILURES_IN_A_ROW: Final = 6
STOP_WITHIN_SECONDS: Final = 5.0
"""As a pod's probes have them. What is dead has nothing left to drain."""
_ANSWER_SECONDS: Final = 1.0
_LONGEST_ANSWER: Final = 4096

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
    host, port = address
    client = AdminClient(timeout_seconds=_ANSWER_SECONDS, largest_body=_LONGEST_ANSWER, port=port)
    try:
        answer = await client.ask(host, path)
    except NoAnswer as error:
        return str(error)
    return None if answer.status == 200 else answer.body.decode("utf-8", "replace").strip()
