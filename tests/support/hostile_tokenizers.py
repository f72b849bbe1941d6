"""Tokenizer files over which the library, which is written in Rust, panics or ends its process.

A panic comes to Python as a `BaseException`.
"""

import json
from typing import Any, Final

from support.text_handlers import Embedder, tokenizer_json


class Panic(BaseException):
    """As the library's, which has no name that could be imported."""


def _with(**parts: Any) -> bytes:
    return json.dumps({**json.loads(tokenizer_json()), **parts}).encode()


PANICS_OVER_TEXT: Final = _with(pre_tokenizer={"type": "FixedLength", "length": 0})
"""Can be read, and panics over whatever is tokenised."""
PANICS_WHEN_READ: Final = _with(normalizer={"type": "Precompiled", "precompiled_charsmap": ""})


class Hostile(Embedder):
    """Serves such a file."""

    tokenizer = PANICS_OVER_TEXT


class Unreadable(Embedder):
    """Serves one that cannot even be read."""

    tokenizer = PANICS_WHEN_READ
