"""Requests of Triton's generate extension, read and checked. Pure.

    {"text_input": "Once upon a time", "parameters": {"max_tokens": 20, "temperature": 0}}

Parameters have vLLM's names, as in Triton's backend for it.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.generation.native.requests.request_fields import (
    SAMPLING,
    STOPPING,
    optional_object,
)
from batchedmodel_sidecar.protocols.json_bodies import require_text

GENERATE: Final = frozenset({"id", "text_input", "parameters"})
_PARAMETERS: Final = SAMPLING | STOPPING | {"max_tokens", "stream"}


class Generate(NamedTuple):
    """What is asked."""

    id: str | None
    text: str
    parameters: Mapping[str, Any]


def generate_of(asked: dict[str, Any]) -> Generate:
    """The request; raises `InvalidInput`."""
    name = None if asked.get("id") is None else require_text(asked, "id")
    parameters = optional_object(asked, "parameters")
    for field in parameters:
        if field not in _PARAMETERS:
            rule = f"is not taken here; known: {', '.join(sorted(_PARAMETERS))}"
            raise InvalidInput(f"parameters.{field}", rule)
    return Generate(name, require_text(asked, "text_input"), parameters)
