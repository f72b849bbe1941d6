"""Callers of texts that do not stream, each with its next request as soon as it has an answer."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from support.chain import Chain

COMPLETIONS: Final = "/v1/completions"
_SHORTEST_PAUSE_SECONDS: Final = 0.05
"""After a refusal, whatever it says: no caller may ask in an endless loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLoad:
    """More callers than there are places, for a while."""

    callers: int
    seconds: float
    allowed_seconds: float
    """That each request has."""
    tokens: Callable[[random.Random], int]
    """Of each answer; it draws from a generator of the load's own."""
    seed: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    """Fields of each request."""


@dataclass(kw_only=True)
class WholeAnswers:
    """What became of the requests."""

    in_time: int = 0
    """Answers that were whole within the time of the load and that of their requests."""
    tokens: int = 0
    """Of all answers that came."""
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Of refusals."""
    without_retry_after: int = 0
    """Refusals that do not say when to come again."""


async def ask_whole(chain: Chain, load: WholeLoad) -> WholeAnswers:
    """Ask until the time is over; what is under way then may still end."""
    loop, seen = asyncio.get_running_loop(), WholeAnswers()
    until, chance, numbers = loop.time() + load.seconds, random.Random(load.seed), itertools.count()

    async def call() -> None:
        while loop.time() < until:
            tokens, began = load.tokens(chance), loop.time()
            body = {"model": "m", "prompt": f"text {next(numbers)}", "max_tokens": tokens}
            headers = {"x-request-timeout-ms": f"{1000 * load.allowed_seconds:.0f}"}
            url = chain.url(COMPLETIONS)
            async with chain.session.post(url, json=body | load.more, headers=headers) as answer:
                document = await answer.json()
            ended = loop.time()
            seen.statuses[answer.status] += 1
            if answer.status == 200:
                seen.tokens += document["usage"]["completion_tokens"]
                seen.in_time += ended <= min(until, began + load.allowed_seconds)
                continue
            seen.reasons[answer.headers.get("x-request-outcome", "")] += 1
            named = answer.headers.get("retry-after-ms")
            seen.without_retry_after += named is None
            pause = 0.0 if named is None else float(named) / 1000
            await asyncio.sleep(max(_SHORTEST_PAUSE_SECONDS, pause))

    async with asyncio.TaskGroup() as group:
        for _ in range(load.callers):
            group.create_task(call())
    return seen
