"""Large bodies that the sidecar reads whole and refuses, and callers that send them.

Each is of a kind (which path, which field is wrong) and of a form (how it goes over the wire).
"""

import asyncio
import gzip
import random
import string
from collections import Counter
from collections.abc import Mapping
from typing import Final

import orjson

from support.raw_caller import RawCaller, request

KINDS: Final = ("chat", "completions", "embeddings", "infer")
FORMS: Final = ("plain", "gzip", "chunked")
SIZE: Final = 1_900_000
"""Bytes of a body, nearly as many as one for text may have."""
_CHUNK: Final = 64 * 1024
_JSON: Final = "Content-Type: application/json"
_LETTERS: Final = string.ascii_lowercase + "      "


def bodies() -> Mapping[str, tuple[str, bytes]]:
    """Path and body of each kind, for a model `m` that generates texts and takes `x` of INT64."""
    text = "".join(random.Random(1).choices(_LETTERS, k=SIZE - 200))
    numbers = [1000 + number % 9000 for number in range(SIZE // 5 - 50)]
    chat = {"model": "m", "messages": [{"role": "user", "content": text}], "n": 0}
    entry = {"name": "x", "datatype": "INT64", "shape": [1, len(numbers) + 1]}
    documents = {
        "chat": ("/v1/chat/completions", chat),
        "completions": ("/v1/completions", {"model": "m", "prompt": text, "n": 0}),
        "embeddings": ("/v1/embeddings", {"model": "m", "input": [[*numbers, "wrong"]]}),
        "infer": ("/v2/models/m/infer", {"inputs": [entry | {"data": [*numbers, "wrong"]}]}),
    }
    return {kind: (path, orjson.dumps(document)) for kind, (path, document) in documents.items()}


def on_the_wire(path: str, body: bytes, form: str) -> bytes:
    """A request with such a body."""
    if form == "gzip":
        return request(path, gzip.compress(body, 1), _JSON, "Content-Encoding: gzip")
    return request(path, body, _JSON, chunks=_CHUNK if form == "chunked" else 0)


async def send(port: int, wire: bytes, *, count: int, callers: int) -> Counter[int]:
    """The statuses of so many answers to the same request, asked for by so many callers at once."""
    statuses: Counter[int] = Counter()
    left = count

    async def call() -> None:
        nonlocal left
        async with RawCaller.calling(port) as caller:
            while left > 0:
                left -= 1
                caller.sends(wire)
                statuses[(await caller.answer())[0]] += 1

    await asyncio.gather(*(call() for _ in range(callers)))
    return statuses
