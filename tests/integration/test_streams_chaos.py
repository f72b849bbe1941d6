"""Streams while everything goes wrong: no token is lost or doubled, and all is accounted for."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.connection import ChunkDecoder
from support.books import assert_books_balance
from support.chain import Chain, in_front_of
from support.engine_server import EngineServer

SECONDS: Final = 10.0
CALLERS: Final = 24
SETTINGS: Final = BatchSettings(request_timeout_seconds=3.0)


@dataclass
class Stream:
    """One caller's stream, and what came of it."""

    mark: int
    tokens: int
    slow: bool
    leaves_after: float | None
    script: dict[str, Any]
    body: bytearray = field(default_factory=bytearray)
    status: int | None = None
    broke_off: bool = False

    @property
    def texts(self) -> list[str]:
        found = []
        # A caller may leave in the midst of an event, right behind any of its brackets.
        for event in bytes(self.body).split(b"\n\n")[:-1]:
            if event.startswith(b"data: {") and event.endswith(b"}"):
                for choice in json.loads(event[6:]).get("choices", ()):
                    text = choice["delta"].get("content")
                    found += [text] if text else []
        return found

    def check(self) -> None:
        """What came is the beginning of what was asked, and says so where it is not all."""
        texts = self.texts
        assert texts == [f" t{self.mark}-{number}" for number in range(len(texts))], self
        if self.status != 200:
            assert not texts
        elif b"[DONE]" in self.body and b'"error"' not in self.body:
            assert len(texts) == self.tokens, self
        else:
            told = b'"error"' in self.body
            assert told or self.broke_off or self.leaves_after is not None, self


def drawn(rng: random.Random, mark: int) -> Stream:
    tokens = rng.randint(1, 40)
    script: dict[str, Any] = {"mark": mark}
    trouble = rng.random()
    if trouble < 0.08:
        script["breaks_off_after"] = rng.randint(0, tokens)
    elif trouble < 0.12:
        script["hangs_after"] = rng.randint(0, tokens)
    elif trouble < 0.2:
        script |= {"status": rng.choice([429, 503, 500, 400]), "retry_after": "0"}
    elif trouble < 0.25:
        script["error_after"] = rng.randint(0, tokens)
    leaves = rng.uniform(0.0, 1.0) if rng.random() < 0.2 else None
    return Stream(mark, tokens, rng.random() < 0.1, leaves, script)


async def asked(chain: Chain, stream: Stream) -> None:
    document = {
        "model": "m",
        "messages": [{"role": "user", "content": "x" * 50}],
        "max_tokens": stream.tokens,
        "stream": True,
        "simulate": stream.script,
    }
    body = json.dumps(document).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    try:
        lines = f"Host: m\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}".encode() + body)
        async with asyncio.timeout(stream.leaves_after):
            head = await reader.readuntil(b"\r\n\r\n")
            stream.status = int(head[9:12])
            if b"chunked" not in head:
                stream.body += await reader.read()
                return
            decoder = ChunkDecoder()
            while data := await reader.read(40 if stream.slow else 65536):
                stream.body += decoder.feed(data)
                if stream.slow:
                    await asyncio.sleep(0.005)
            stream.broke_off = not decoder.ended
    except TimeoutError:
        pass  # it leaves
    except (OSError, EOFError):
        stream.broke_off = True
    finally:
        writer.transport.abort()


async def test_no_token_is_lost_or_doubled_and_all_streams_are_accounted_for(
    tmp_path: Path,
) -> None:
    rng, streams = random.Random(5), list[Stream]()
    loop = asyncio.get_running_loop()
    protocol = ServerProtocol.OPENAI
    async with (
        EngineServer() as engine,
        in_front_of(engine.url, tmp_path, upstream_protocol=protocol, settings=SETTINGS) as chain,
    ):
        await chain.ready()
        until = loop.time() + SECONDS

        async def calls() -> None:
            while loop.time() < until:
                stream = drawn(rng, len(streams))
                streams.append(stream)
                await asked(chain, stream)
                await asyncio.sleep(rng.uniform(0.0, 0.05))

        callers = [asyncio.create_task(calls()) for _ in range(CALLERS)]
        for wait in (3.0, 3.0):
            await asyncio.sleep(wait)
            await engine.dies()
            await asyncio.sleep(0.3)
            await engine.comes_back()
        await asyncio.gather(*callers)
        for stream in streams:
            stream.check()
        whole = sum(b"[DONE]" in one.body and b'"error"' not in one.body for one in streams)
        assert whole > len(streams) / 3
        await assert_books_balance(chain)
        async with asyncio.timeout(5.0):
            while engine.counts()["running"]:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.01)
        assert (await chain.admin("/ready"))[0] == 200
