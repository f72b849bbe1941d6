"""Requests of one text each, of 4 to 120 words, as callers of an embedding model send them.

Called by the tables `minilm` and `busy_neighbour`.
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


def embed(
    server: LocalServer, *, callers: int, seconds: float, warm_up_seconds: float
) -> LoadResult:
    """So many callers, each with its next text as soon as it has its answer."""
    result = run_load(
        Target(
            port=server.port,
            path=server.path,
            headers={"Content-Type": "application/json"},
            bodies=[orjson.dumps({**server.fields, "input": text}) for text in texts()],
        ),
        ClosedLoop(connections=callers, seconds=seconds, warm_up_seconds=warm_up_seconds),
        timeout_seconds=_LONGEST_WAIT_SECONDS,
    )
    if result.ok < result.requests:
        tell(f"{server.name}: {result.statuses}, {result.errors}")
    return result
