"""What sidecar and HTTP streams take of our own engine's speed.

A random Llama of 32 million numbers in float32 on the CPU gets the same 48 requests in two ways:
from a loop around the engine in a process of its own, and as streams through sidecar and model
server. Of a simulated device the first way is a connection to the model server's engine. Called by
`generation_chain`.
"""

import asyncio
import json
import string
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import orjson

from bench_report import Figure, at_least, of_rounds, tell
from engine_rivals import MODEL, Load
from stream_plan import COMPLETIONS, Stream, StreamLoad, StreamResult, run_streams
from support.chain import Chain
from support.engine_frames import submit
from support.private_hop import connected
from support.random_checkpoints import generating_checkpoint

_LETTERS: Final = string.ascii_lowercase
_BYTES: Final = 256
_SECONDS: Final = 60.0
"""Within which all streams end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Tokens per second, of the same requests."""

    bare: float
    through: float


class BareEngine:
    """The process without a sidecar."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def rate(self, load: Load) -> float:
        """Tokens per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        requests = list(zip(load.prompts, load.tokens, strict=True))
        self._process.stdin.write(orjson.dumps(requests) + b"\n")
        told = await self._process.stdout.readline()
        return float(told.removeprefix(b"rate: "))


@asynccontextmanager
async def bare_engine(checkpoint: Path) -> AsyncIterator[BareEngine]:
    """It, with its model loaded by the time it first answers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("bare_engine.py")),
        str(checkpoint),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield BareEngine(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def speaking_checkpoint(folder: Path) -> Path:
    """A model nearly all of whose tokens are words, and none of which ends a text."""
    generating_checkpoint(folder, "Llama", **MODEL)
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    words = document["model"]["vocab"]
    names = map("".join, product(_LETTERS, repeat=3))
    while len(words) < int(MODEL["vocab_size"]):
        words[next(names)] = len(words)
    file.write_text(json.dumps(document))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": []}))
    return folder


def begun_otherwise(load: Load, number: int) -> Load:
    """The same with other first tokens: no cache knows anything of these prompts."""
    prompts = [[(first + number) % _BYTES, *rest] for first, *rest in load.prompts]
    return replace(load, prompts=prompts)


def simulated(load: Load) -> Load:
    """The same for the simulated device, which knows fewer tokens."""
    prompts = [[one % _BYTES for one in prompt] for prompt in load.prompts]
    return replace(load, name=f"device of 20 ms a step, {load.name}", prompts=prompts)


async def framed_rate(chain: Chain, load: Load) -> float:
    """Tokens per second over a connection to the engine."""
    async with connected(chain.folder / "model.sock") as caller:
        await caller.report()
        began = time.perf_counter()
        pairs = zip(load.prompts, load.tokens, strict=True)
        await caller.send(*(submit(at, ids, max_tokens=n) for at, (ids, n) in enumerate(pairs)))
        await caller.texts(len(load.tokens))
        return load.total / (time.perf_counter() - began)


async def rounds_of(
    bare: Callable[[Load], Awaitable[float]], chain: Chain, load: Load, rounds: int
) -> list[Round]:
    """Both, as often the one first as the other."""
    await bare(load)
    await _through(chain, load)
    found = []
    for number in range(rounds):
        rates, new = {}, begun_otherwise(load, number + 1)
        for name in ("bare", "through") if number % 2 == 0 else ("through", "bare"):
            tell(f"{load.name}: {name}")
            if name == "bare":
                rates[name] = await bare(new)
            else:
                rates[name] = rate_of(await _through(chain, new), load)
        found.append(Round(**rates))
    return found


async def _through(chain: Chain, load: Load) -> StreamResult:
    streams = [
        Stream(mark=number, tokens=tokens, marked=False, path=COMPLETIONS, prompt_ids=prompt)
        for number, (prompt, tokens) in enumerate(zip(load.prompts, load.tokens, strict=True))
    ]
    return await run_streams(
        StreamLoad(port=chain.port, streams=streams, seconds=1.0, grace_seconds=_SECONDS)
    )


def rate_of(result: StreamResult, load: Load) -> float:
    """Tokens per second from the first request to the last end.

    A stream that ends well has all of its tokens, of which a few are no characters by themselves.
    """
    wrong = [one for one in result.records if not (one.whole and one.told_end and one.told_reason)]
    if wrong:
        raise AssertionError(f"{len(wrong)} streams were not whole, such as {wrong[0]}")
    ends = [one.ended for one in result.records if one.ended is not None]
    return load.total / (max(ends) - min(one.sent for one in result.records))


def overhead_figures(what: str, rounds: Sequence[Round]) -> list[Figure]:
    """Of requests of this kind."""
    name = f"{what}, through sidecar and HTTP streams, over the bare engine loop"
    return [
        of_rounds(
            lambda value: at_least(name, value, "%", 95.0),
            [100 * one.through / one.bare for one in rounds],
        ),
        of_rounds(
            lambda value: Figure(name=f"{what}: tokens, bare", value=value, unit="1/s"),
            [one.bare for one in rounds],
        ),
        of_rounds(
            lambda value: Figure(name=f"{what}: tokens, through", value=value, unit="1/s"),
            [one.through for one in rounds],
        ),
    ]
