"""What a request for generated text says that matters to its queue. Pure.

The server judges the request, so a field of a wrong type counts as absent here. Few rules hold in
front of every server: see `require_common`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import Whole
from batchedmodel_scheduling.generation.requests import AtOnce
from batchedmodel_sidecar.errors import ModelNotFound
from batchedmodel_sidecar.protocols.json_bodies import NAMELESS, read_json

SEEDS: Final = Whole(minimum=-(2**63), maximum=2**63 - 1)
_BYTES_PER_TOKEN: Final = 4
_MOST_CHOICES: Final = 128
_MOST_TOKENS: Final = 10_000_000
_MOST_DIGITS: Final = 9
_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
LONGEST_READ: Final = 256 * 1024
"""Bytes of a body that is read here; of a longer one its length must do."""


class Fields(NamedTuple):
    """What is known of one request."""

    model: str
    prompt_tokens: int
    """Of all prompts. Estimated by bytes; of token ids exact."""
    max_tokens: int | None
    choices: int
    """Of all prompts."""
    streams: bool
    adapter: str | None = None
    """Of our own engine's model."""
    at_once: AtOnce | None = None
    """See `GenerationRequest`."""
    whole: bool = False
    """Whether it is known to be answered in one piece."""
    least_tokens: int = 1
    """That each choice has for certain."""


def fields_of(body: Buffer, *, readable: bool, chat: bool) -> Fields:
    """The fields of a body; raises `InvalidInput` or `ModelNotFound` by the rules for all servers.

    `readable`: whether it lies there as plain JSON; `chat`: it has messages, and no prompt.
    """
    estimated = max(1, len(body) // _BYTES_PER_TOKEN)
    if not readable or len(body) > LONGEST_READ:
        return Fields("", estimated, None, 1, streams=False)
    document = read_json(body)
    if not isinstance(document, dict):
        raise InvalidInput("body", "is no JSON object")
    if document.get("model") == "":
        raise ModelNotFound(NAMELESS)
    require_common(document, chat=chat)
    model = document.get("model")
    most, prompts = _whole(document.get("max_tokens"), 0), 1
    if chat:
        most = _whole(document.get("max_completion_tokens"), 0) or most
    elif isinstance(prompt := document.get("prompt"), list):
        # Token ids are one prompt, anything else is one in each member.
        prompts = 1 if prompt and isinstance(prompt[0], int) else max(1, len(prompt))
        estimated = _tokens_of(prompt) or estimated
    choices = prompts * _whole(document.get("n"), 1)
    streams = _holds(document.get("stream"))
    return Fields(
        model if isinstance(model, str) else "",
        estimated,
        most or None,
        min(choices, _MOST_CHOICES),
        streams,
        whole=not streams,
    )


def require_common(fields: Mapping[str, Any], *, chat: bool) -> None:
    """Raise `InvalidInput` for what no server is asked."""
    seed, best = fields.get("seed"), fields.get("best_of")
    # Readers make a float of what is beyond 64 bits.
    if isinstance(seed, int | float) and not -(2**63) <= seed < 2**63:
        ruled(SEEDS, seed, "seed")
    choices = _whole(fields.get("n"), 1)
    if chat and best is not None and _whole(best, choices) != choices:
        raise InvalidInput("best_of", f"is not n, which is {choices}", best)


def _whole(value: Any, default: int) -> int:
    """Servers take "2" and 2.0 for 2."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _MOST_DIGITS:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 < value < _MOST_TOKENS else default


def _holds(value: Any) -> bool:
    """And they take a few words, and 1, for true."""
    return value.lower() in _TRUE if isinstance(value, str) else value is True or value == 1


def _tokens_of(prompt: list[Any]) -> int:
    """Of a prompt of token ids, or of several; 0 for any other."""
    if not prompt:
        return 0
    if isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt[0], list):
        return sum(len(one) for one in prompt if isinstance(one, list))
    return 0
