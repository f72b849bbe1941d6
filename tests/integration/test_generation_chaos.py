"""Text of our own engine while everything goes wrong: nothing is lost, doubled or forgotten."""

import asyncio
import json
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes import sidecar_metrics as names
from batchedmodel_sidecar.backends.upstream.connection import ChunkDecoder
from support.books import assert_books_balance
from support.chain import Chain, running_chain

SECONDS: Final = 8.0
CALLERS: Final = 24
PROMPTS: Final = 12
LONGEST: Final = 60
SETTINGS: Final = BatchSettings(request_timeout_seconds=10.0)
# Few blocks, so that sequences give way to others.
PARAMETERS: Final = {
    "generates": "true",
    "stepSeconds": "0.005",
    "blocks": "40",
    "blockTokens": "16",
}


@dataclass
class Text:
    """One caller's stream, and what came of it."""

    prompt: int
    tokens: int
    slow: bool
    leaves_after: float | None
    body: bytearray = field(default_factory=bytearray)
    status: int | None = None
    broke_off: bool = False

    @property
    def text(self) -> str:
        found = ""
        for event in bytes(self.body).split(b"\n\n")[:-1]:
            if event.startswith(b'data: {"id"') and event.endswith(b"}"):
                found += "".join(one["text"] for one in json.loads(event[6:])["choices"])
        return found

    @property
    def is_whole(self) -> bool:
        return b"[DONE]" in self.body and b'"error"' not in self.body

    def check(self, wanted: str) -> None:
        """What came is the beginning of what the prompt gives, and says so where it is not all."""
        wanted = wanted[: self.tokens]
        assert wanted.startswith(self.text), self
        if self.status != 200:
            assert not self.text
        elif self.is_whole:
            assert self.text == wanted, self
        else:
            told = b'"error"' in self.body
            assert told or self.broke_off or self.leaves_after is not None, self


def document(prompt: int, tokens: int) -> dict[str, Any]:
    text = f"{prompt} " * (3 + 4 * prompt)
    return {"model": "m", "prompt": text, "max_tokens": tokens, "temperature": 0}


def drawn(rng: random.Random) -> Text:
    return Text(
        prompt=rng.randrange(PROMPTS),
        tokens=rng.randint(1, LONGEST),
        slow=rng.random() < 0.1,
        leaves_after=rng.uniform(0.0, 1.0) if rng.random() < 0.2 else None,
    )


async def asked(chain: Chain, text: Text) -> None:
    body = json.dumps(document(text.prompt, text.tokens) | {"stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    try:
        lines = f"Host: m\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(f"POST /v1/completions HTTP/1.1\r\n{lines}".encode() + body)
        async with asyncio.timeout(text.leaves_after):
            head = await reader.readuntil(b"\r\n\r\n")
            text.status = int(head[9:12])
            if b"chunked" not in head:
                text.body += await reader.read()
                return
            decoder = ChunkDecoder()
            while data := await reader.read(40 if text.slow else 65536):
                text.body += decoder.feed(data)
                if text.slow:
                    await asyncio.sleep(0.005)
            text.broke_off = not decoder.ended
    except TimeoutError:
        pass  # it leaves
    except (OSError, EOFError):
        text.broke_off = True
    finally:
        writer.transport.abort()


async def test_texts_are_what_their_prompts_give_and_all_are_accounted_for(
    tmp_path: Path,
) -> None:
    rng, texts = random.Random(5), list[Text]()
    loop = asyncio.get_running_loop()
    async with running_chain(
        tmp_path, handler="simulated", parameters=PARAMETERS, settings=SETTINGS
    ) as chain:
        wanted = []
        for prompt in range(PROMPTS):
            url = chain.url("/v1/completions")
            async with chain.session.post(url, json=document(prompt, LONGEST)) as response:
                wanted.append((await response.json())["choices"][0]["text"])
        until = loop.time() + SECONDS

        async def calls() -> None:
            # A slow machine takes longer, until there are enough to say something.
            while loop.time() < until or sum(text.status == 200 for text in texts) <= 100:
                text = drawn(rng)
                texts.append(text)
                await asked(chain, text)
                await asyncio.sleep(rng.uniform(0.0, 0.05))

        callers = [asyncio.create_task(calls()) for _ in range(CALLERS)]
        for _ in range(2):
            await asyncio.sleep(2.0)
            after = len(chain.sidecar.lines)
            chain.model.send(signal.SIGKILL)
            await chain.model.ended()
            await chain.model.start()
            await chain.ready(after=after)
        await asyncio.gather(*callers)
        for text in texts:
            text.check(wanted[text.prompt])
        # While there is no model all are refused.
        begun = [text for text in texts if text.status == 200]
        assert sum(text.is_whole for text in begun) > len(begun) / 2
        assert len(begun) > 100
        await assert_books_balance(chain)
        await chain.until(names.GENERATION_RUNNING, lambda running: running == 0)
        async with chain.session.post(url, json=document(0, 1)) as response:
            assert response.status == 200
        assert await chain.metric(names.CACHE_USAGE) == 0
