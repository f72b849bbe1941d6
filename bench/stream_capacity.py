"""What the simulated engine can serve, asked of the engine itself in virtual time.

Called by `streams`, which offers real processes the same draws. Pure: it starts nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stream_plan import Stream
from support.engine import Engine, EngineSettings, tokens_of
from support.engine import Sequence as EngineSequence

FEWEST_TOKENS: Final = 20
MOST_TOKENS: Final = 60
PROMPT_BYTES: Final = 256
FIRST_TOKEN_SECONDS: Final = 1.0
TOKEN_SECONDS: Final = 0.04
_MEETING: Final = 0.99
_HALVINGS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One sequence's times."""

    first_seconds: float
    token_seconds: float

    @property
    def good(self) -> bool:
        """Whether both targets are met."""
        return meets(self.first_seconds, self.token_seconds)


def meets(first_seconds: float | None, token_seconds: float) -> bool:
    """Whether a stream with these times is as its caller wants it; None: no token came."""
    if first_seconds is None:
        return False
    return first_seconds <= FIRST_TOKEN_SECONDS and token_seconds <= TOKEN_SECONDS


def lengths(rng: random.Random) -> int:
    """How many tokens a stream has."""
    return rng.randint(FEWEST_TOKENS, MOST_TOKENS)


def drawn(
    rate: float, seconds: float, seed: int, *, first_mark: int = 0, **same: object
) -> list[Stream]:
    """Streams in Poisson arrivals, the same for the same seed; `same` is equal in all of them."""
    rng, at, streams = random.Random(seed), 0.0, list[Stream]()
    while (at := at + rng.expovariate(rate)) < seconds:
        mark = first_mark + len(streams)
        stream = Stream(mark=mark, at=at, tokens=lengths(rng), **same)  # type: ignore[arg-type]
        streams.append(stream)
    return streams


def token_limit(
    engine: EngineSettings, prompt_bytes: int = PROMPT_BYTES, mean_tokens: float | None = None
) -> float:
    """Tokens per second with all places taken; each output brings its prompt's time with it."""
    mean = (FEWEST_TOKENS + MOST_TOKENS) / 2 if mean_tokens is None else mean_tokens
    return limit_of(engine, tokens_of(prompt_bytes), mean)


def limit_of(engine: EngineSettings, prompt_tokens: int, mean_tokens: float) -> float:
    """The same of prompts of so many tokens."""
    prefill = prompt_tokens * engine.prefill_seconds_per_token
    return 1 / (engine.step_seconds / engine.max_num_seqs + prefill / mean_tokens)


def request_limit(engine: EngineSettings, prompt_bytes: int = PROMPT_BYTES) -> float:
    """Requests per second."""
    return token_limit(engine, prompt_bytes) * 2 / (FEWEST_TOKENS + MOST_TOKENS)


def served(engine: EngineSettings, streams: Sequence[Stream]) -> list[Served]:
    """What an engine makes of streams that reach it at their times, first come first served."""
    running, now, following = Engine(settings=engine), 0.0, 0
    asked = [
        EngineSequence(prompt_tokens=tokens_of(one.prompt_bytes), output_tokens=one.tokens)
        for one in streams
    ]
    place = {id(one): number for number, one in enumerate(asked)}
    first, last = [0.0] * len(asked), [0.0] * len(asked)
    while True:
        while following < len(asked) and streams[following].at <= now:
            running.offer(asked[following])
            following += 1
        seconds = running.begin()
        if seconds is None:
            if following == len(asked):
                break
            now = streams[following].at
            continue
        now += seconds
        for one in running.end():
            if one.emitted == 1:
                first[place[id(one)]] = now
            if one.finished:
                last[place[id(one)]] = now
    return [
        Served(
            first_seconds=begun - stream.at,
            token_seconds=(ended - begun) / max(1, stream.tokens - 1),
        )
        for stream, begun, ended in zip(streams, first, last, strict=True)
    ]


def capacity(engine: EngineSettings, *, seconds: float, seed: int) -> float:
    """The highest rate of requests at which 99 % meet both targets."""
    limit = request_limit(engine)
    low, high = 0.5 * limit, 1.2 * limit
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        times = served(engine, drawn(middle, seconds, seed))
        if sum(one.good for one in times) >= _MEETING * len(times):
            low = middle
        else:
            high = middle
    return low
