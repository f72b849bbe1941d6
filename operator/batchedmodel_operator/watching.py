"""Keeps the watching up. The work goes on meanwhile, and whoever begins anew lists everything."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

_log: Final = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 2.0


async def keep_watching(
    watch: Callable[[], Awaitable[None]], told_to_stop: Callable[[float], Awaitable[bool]]
) -> None:
    """Watch until it ends by itself, which a signal makes it do; begin anew whenever it fails.

    Kopf gives up altogether when one of its requests fails for good, such as for a watched kind
    that vanishes between two of them. `told_to_stop` waits for a signal for some seconds.
    """
    while True:
        try:
            await watch()
            return
        except Exception as error:
            _log.warning("watching failed: %r; again in %.0f s", error, _AGAIN_SECONDS)
        if await told_to_stop(_AGAIN_SECONDS):
            return
