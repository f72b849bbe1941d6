"""Tokenizer files over which the library, which is written in Rust, panics or ends its process.

A panic comes to Python as a `BaseException`.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from batchedmodel_model_server.api.handler import Batch
from support.text_handlers import Embedder, tokenizer_json


class Panic(BaseException):
    """As the library's, which has no name that could be imported."""


def _with(**parts: Any) -> bytes:
    return json.dumps({**json.loads(tokenizer_json()), **parts}).encode()


def _merging(prefix: str, *words: str) -> dict[str, object]:
    vocabulary = {word: number for number, word in enumerate(words)}
    merges = [list(words[:2])]
    kind = {"type": "BPE", "continuing_subword_prefix": prefix}
    return {**kind, "vocab": vocabulary, "merges": merges}


PANICS_OVER_TEXT: Final = _with(pre_tokenizer={"type": "FixedLength", "length": 0})
"""Can be read, and panics over whatever is tokenised."""
PANICS_WHEN_READ: Final = _with(normalizer={"type": "Precompiled", "precompiled_charsmap": ""})
ENDS_ITS_PROCESS: Final = _with(model=_merging("x", "a", "é", "aé"))
"""The library cuts a character in two, and cannot even say so."""


class _Turning(Embedder):
    """Has a sound tokenizer until it was warmed up, when nobody tries it any more."""

    becomes: ClassVar[bytes]

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        self.tokenizer = self.becomes
        return super().forward(batch)


class Hostile(_Turning):
    """Its tokenizer panics over text."""

    becomes = PANICS_OVER_TEXT


class Unreadable(_Turning):
    """Its tokenizer cannot even be read."""

    becomes = PANICS_WHEN_READ


class Deadly(Embedder):
    """Its tokenizer ends the process that reads it, from the beginning."""

    tokenizer = ENDS_ITS_PROCESS
