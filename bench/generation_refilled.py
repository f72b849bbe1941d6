"""A simulated device that is refilled through the whole chain: how much of it is used, and at what
cost.

More callers than the engine has places have their next request at once. The device runs 64
sequences at once and takes 20 ms a step, 20 us more for each token of a prompt that begins. Called
by `generation_chain`.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from bench_report import Figure, at_least, at_most, of_rounds, tell
from process_family import family_cpu_seconds
from stream_capacity import lengths, limit_of, request_limit
from stream_plan import CHAT, COMPLETIONS, Stream, StreamLoad, StreamResult, run_streams
from support.chain import Chain
from support.engine import EngineSettings

DEVICE: Final = EngineSettings()
CLOSED: Final = 96
PROMPT_BYTES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RefillPlan:
    """How often and for how many seconds it is offered."""

    rounds: int
    learning: float
    """Of a closed loop before all others."""
    warm_up: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """A closed loop."""

    share: float
    """Of the tokens that the device's time allows."""
    cpu_seconds: float
    """Of the sidecar, per token."""
    server_cpu_seconds: float
    """Of the model server, per token."""
    generator_cpu_seconds: float
    wrong: int
    """Streams that ended without being whole, and tokens too many."""


async def refilled(chain: Chain, plan: RefillPlan) -> list[Figure]:
    """More callers than the engine has places, each with its next request at once."""
    tell("our engine refilled: learning")
    await _closed_loop(chain, CHAT, plan.learning, seed=1000)
    found: dict[str, list[Refilled]] = {CHAT: [], COMPLETIONS: []}
    for seed in range(plan.rounds):
        for path in (CHAT, COMPLETIONS) if seed % 2 == 0 else (COMPLETIONS, CHAT):
            tell(f"our engine refilled: {path}")
            found[path].append(await _round(chain, path, plan, seed))
    return [
        *refilled_figures("chats", found[CHAT], goals=True),
        *refilled_figures("completions", found[COMPLETIONS], goals=False),
    ]


async def _round(chain: Chain, path: str, plan: RefillPlan, seed: int) -> Refilled:
    seconds = plan.warm_up + plan.seconds
    sidecar, server = (family_cpu_seconds(one.pid) for one in (chain.sidecar, chain.model))
    result = await _closed_loop(chain, path, seconds, seed)
    return judged(
        result,
        rate=result.token_rate(plan.warm_up, seconds),
        prompt_tokens=await _prompt_tokens(chain, path),
        cpu_seconds=family_cpu_seconds(chain.sidecar.pid) - sidecar,
        server_cpu_seconds=family_cpu_seconds(chain.model.pid) - server,
    )


async def _closed_loop(chain: Chain, path: str, seconds: float, seed: int) -> StreamResult:
    most = 2 * int(seconds * request_limit(DEVICE, PROMPT_BYTES)) + CLOSED
    rng = random.Random(seed)
    streams = [
        Stream(
            mark=number,
            tokens=lengths(rng),
            marked=False,
            path=path,
            prompt_bytes=PROMPT_BYTES,
        )
        for number in range(most)
    ]
    return await run_streams(
        StreamLoad(port=chain.port, streams=streams, seconds=seconds, closed=CLOSED)
    )


async def _prompt_tokens(chain: Chain, path: str) -> int:
    """What the sidecar counts of such a prompt."""
    stream = Stream(mark=0, tokens=1, marked=False, path=path, prompt_bytes=PROMPT_BYTES)
    body = {**json.loads(stream.body()), "stream": False}
    async with chain.session.post(chain.url(path), json=body) as response:
        return int((await response.json())["usage"]["prompt_tokens"])


def judged(
    result: StreamResult,
    *,
    rate: float,
    prompt_tokens: int,
    cpu_seconds: float,
    server_cpu_seconds: float,
) -> Refilled:
    """What a load shows that made so many tokens per second and took so much CPU time."""
    ended = [one.tokens for one in result.records if one.completed]
    limit = limit_of(DEVICE, prompt_tokens, fmean(ended) if ended else math.inf)
    tokens = sum(result.arrivals) or math.nan
    return Refilled(
        share=rate / limit,
        cpu_seconds=cpu_seconds / tokens,
        server_cpu_seconds=server_cpu_seconds / tokens,
        generator_cpu_seconds=result.cpu_seconds / tokens,
        wrong=sum(
            one.foreign or not (one.completed or one.left or one.ended is None)
            for one in result.records
        ),
    )


def refilled_figures(what: str, rounds: Sequence[Refilled], *, goals: bool) -> list[Figure]:
    """Of closed loops of one kind."""
    name = f"device of 20 ms a step, 64 sequences, refilled by {CLOSED} {what}"
    name += f" ({PROMPT_BYTES} characters, 20 to 60 tokens)"

    def share(value: float) -> Figure:
        told = f"{name}: share of its token limit"
        return at_least(told, value, "%", 97.0) if goals else _plain(told, value, "%")

    def cost(value: float) -> Figure:
        told = f"{name}: CPU of the sidecar per token"
        return at_most(told, value, "us", 30.0) if goals else _plain(told, value, "us")

    return [
        of_rounds(share, [100 * one.share for one in rounds]),
        of_rounds(cost, [1e6 * one.cpu_seconds for one in rounds]),
        of_rounds(
            lambda value: _plain(f"{what}: CPU of the model server per token", value, "us"),
            [1e6 * one.server_cpu_seconds for one in rounds],
        ),
        of_rounds(
            lambda value: _plain(f"{what}: CPU of the load generator per token", value, "us"),
            [1e6 * one.generator_cpu_seconds for one in rounds],
        ),
        of_rounds(
            lambda value: _plain(f"{what}: streams that were not whole", value, ""),
            [one.wrong for one in rounds],
        ),
    ]


def _plain(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit)
