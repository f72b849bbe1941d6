"""Keeps the watching up. The work goes on meanwhile, and whoever begins anew lists everything."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

_log: Final = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5


class Definition:
    """Whether the definition of what is watched went and came back.

    Kopf looks for the kind just when its definition changes. An API server lists a kind some time
    after its definition is established, and a look that came too early is never repeated.
    """

    def __init__(self, *, served: bool) -> None:
        """`served`: the kind was listed when the watching began."""
        self._missing = not served
        self._returned = asyncio.Event()

    def changed(self, established: bool) -> None:
        """It was seen; `established` is False when it is gone, too."""
        if not established:
            self._missing = True
        elif self._missing:
            self._returned.set()

    async def returned(self, served: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it has come back and the API server lists its kind, as `served` says."""
        await self._returned.wait()
        while not await served():  # noqa: ASYNC110  # it can only be asked
            await asyncio.sleep(_LOOK_SECONDS)


async def keep_watching(
    watch: Callable[[], Awaitable[bool]], told_to_stop: Callable[[float], Awaitable[bool]]
) -> None:
    """Watch until a signal ends it; begin anew whenever it fails, or returns True to ask for it.

    Kopf gives up altogether when one of its requests fails for good, such as for a watched kind
    that vanishes between two of them. `told_to_stop` waits for a signal for some seconds.
    """
    while True:
        try:
            if not await watch():
                return
            continue
        except Exception as error:
            _log.warning("watching failed: %r; again in %.0f s", error, _AGAIN_SECONDS)
        if await told_to_stop(_AGAIN_SECONDS):
            return
