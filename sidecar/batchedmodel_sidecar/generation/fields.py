"""What a request for generated text says that matters to its queue. Pure.

The server judges the request, so a field of a wrong type counts as absent here.
"""

from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput

_BYTES_PER_TOKEN: Final = 4
_MOST_CHOICES: Final = 128
_MOST_TOKENS: Final = 10_000_000
LONGEST_READ: Final = 256 * 1024
"""Bytes of a body that is read here; of a longer one its length must do."""


class Fields(NamedTuple):
    """What is known of one request."""

    model: str
    prompt_tokens: int
    """Estimated by bytes; of a prompt of token ids exact."""
    max_tokens: int | None
    choices: int
    streams: bool


def fields_of(body: Buffer, *, readable: bool) -> Fields:
    """The fields of a body; raises `InvalidInput` where it is no JSON object.

    `readable`: whether it lies there as plain JSON.
    """
    estimated = max(1, len(body) // _BYTES_PER_TOKEN)
    if not readable or len(body) > LONGEST_READ:
        return Fields("", estimated, None, 1, streams=False)
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise InvalidInput("body", f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput("body", "is no JSON object")
    model = document.get("model")
    choices = _whole(document.get("n"), 1)
    most = _whole(document.get("max_completion_tokens"), 0) or _whole(document.get("max_tokens"), 0)
    return Fields(
        model if isinstance(model, str) else "",
        _tokens_of(document.get("prompt")) or estimated,
        most or None,
        min(choices, _MOST_CHOICES),
        document.get("stream") is True,
    )


def _whole(value: Any, default: int) -> int:
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 < value < _MOST_TOKENS else default


def _tokens_of(prompt: Any) -> int:
    """Of a prompt of token ids; 0 for any other."""
    if not isinstance(prompt, list) or not prompt:
        return 0
    if isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt[0], list):
        return sum(len(one) for one in prompt if isinstance(one, list))
    return 0
