"""Requests of one text each, of 4 to 120 words, as callers of an embedding model send them.

Called by `rivals` and by the table `busy_neighbour`.
"""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import orjson

from bench_report import tell
from embedding_rivals import minilm_folder
from load_generator import ClosedLoop, LoadResult, Target, run_load
from local_server import LocalServer

EMBEDDINGS: Final = "/v1/embeddings"
FEWEST_WORDS: Final = 4
MOST_WORDS: Final = 120
_TEXTS: Final = 512
_SHORTEST_WORD: Final = 3
_LONGEST_WAIT_SECONDS: Final = 60.0


@cache
def texts() -> Sequence[str]:
    """Always the same, of words that the model knows whole."""
    lines = Path(minilm_folder(), "vocab.txt").read_text("utf-8").splitlines()
    words = [
        word for word in lines if len(word) >= _SHORTEST_WORD and word.isascii() and word.isalpha()
    ]
    numbers = random.Random(1)
    return [
        " ".join(numbers.choices(words, k=numbers.randint(FEWEST_WORDS, MOST_WORDS)))
        for _ in range(_TEXTS)
    ]


def embed(server: LocalServer, load: ClosedLoop) -> LoadResult:
    """Callers that each send their next text as soon as they have their answer."""
    result = run_load(
        Target(
            port=server.port,
            path=server.path,
            headers={"Content-Type": "application/json"},
            bodies=[body(server, text) for text in texts()],
        ),
        load,
        timeout_seconds=_LONGEST_WAIT_SECONDS,
    )
    if result.ok < result.requests:
        tell(f"{server.name}: {result.statuses}, {result.errors}")
    return result


def body(server: LocalServer, text: str) -> bytes:
    """The request for one text."""
    return orjson.dumps({**server.fields, **server.text_in(text)})
