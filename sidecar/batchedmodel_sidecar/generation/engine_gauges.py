"""What a language model's server says of itself: how many requests it runs, and how full it is.

Servers name their gauges differently. The first server whose names are there is believed.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.generation.admission import EngineView
from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.backends.upstream.protocol import NotReady

logger: Final = logging.getLogger(__name__)

PATH: Final = "/metrics"
ASKED_EVERY: Final = 1.0
"""Seconds, while requests are under way."""
_ASKED_AGAIN_AFTER: Final = 60.0
"""Seconds, where it has no such gauges: it may be replaced by a server that has."""


class _Names(NamedTuple):
    running: str
    waiting: str
    cache: tuple[str, ...]
    """Shares from 0 to 1; newer and older names."""


_SERVERS: Final = (
    _Names(  # vLLM
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ),
    _Names("sglang:num_running_reqs", "sglang:num_queue_reqs", ("sglang:token_usage",)),
    _Names("tgi_batch_current_size", "tgi_queue_size", ()),
    _Names(  # llama.cpp
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        ("llamacpp:kv_cache_usage_ratio",),
    ),
)
_WANTED: Final = frozenset(
    name for server in _SERVERS for name in (server.running, server.waiting, *server.cache)
)


def view_of(text: bytes) -> EngineView | None:
    """The gauges in a page of metrics; None where it has none of any known server.

    Of several engines behind one address their requests are added up.
    """
    samples: dict[str, list[float]] = {}
    for line in text.splitlines():
        name = line.split(b"{", 1)[0].split(b" ", 1)[0].decode(errors="replace")
        if name in _WANTED and (value := _value(line)) is not None:
            samples.setdefault(name, []).append(value)
    for server in _SERVERS:
        if server.running in samples:
            cache = next((samples[name] for name in server.cache if name in samples), None)
            waiting = samples.get(server.waiting)
            return EngineView(
                running=int(sum(samples[server.running])),
                waiting=None if waiting is None else int(sum(waiting)),
                cache_usage=None if cache is None else min(1.0, max(cache)),
            )
    return None


def _value(line: bytes) -> float | None:
    """The number of a line of metrics; None for what is none, or cannot be one of these."""
    parts = line.rsplit(b"}", 1)[-1].split() if b"}" in line else line.split()[1:]
    try:
        value = float(parts[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) and 0 <= value < 1e9 else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineGauges:
    """Asks one server, again and again while requests are under way."""

    client: Client
    busy: Callable[[], Awaitable[None]]
    """Returns once requests are under way."""
    listener: Callable[[EngineView], None]

    async def follow(self) -> None:
        """Do so for ever."""
        while True:
            await self.busy()
            await asyncio.sleep(await self._ask())

    async def _ask(self) -> float:
        """Ask once; the seconds until it makes sense to ask again."""
        try:
            async with asyncio.timeout(ASKED_EVERY):
                status, text = await self.client.ask(PATH)
        except (NotReady, InvalidInput, TimeoutError) as error:
            logger.debug("%s: %s", PATH, error)
            return ASKED_EVERY
        view = view_of(text) if status == HTTPStatus.OK else None
        if view is None:
            return _ASKED_AGAIN_AFTER
        self.listener(view)
        return ASKED_EVERY
