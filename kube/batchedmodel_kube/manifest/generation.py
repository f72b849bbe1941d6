"""What a manifest says of a language model, which answers token by token: limits and targets."""

from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.batching import (
    TARGET_MILLISECONDS,
    TOKEN_MILLISECONDS,
    BatchSettings,
)
from batchedmodel_contract.schema.reading import as_in, section, setting
from batchedmodel_contract.schema.rules import Real, Text, Whole
from batchedmodel_kube.manifest.effect import Effect

MOST_CONTEXT_TOKENS: Final = 1_048_576
MEMORY: Final = Text(
    # Bounded, so that the number of bytes is one that every reader of JSON takes.
    pattern=r"[1-9][0-9]{0,5}(\.[0-9]{1,3})?Mi?|[1-9][0-9]{0,4}(\.[0-9]{1,3})?Gi?",
    form="an amount of memory such as 512Mi or 2.5Gi",
    at_most=16,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueCache:
    """How much memory the keys and values of texts take; exactly one of the fields."""

    memory: str | None = setting(MEMORY)
    """Memory for keys and values: of the accelerator where there is one."""
    fraction: float | None = setting(Real(minimum=0.01, maximum=0.99))
    """Share for keys and values of the memory that the loaded model leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How many texts are generated at once, how much they take, how soon tokens should be there."""

    max_concurrent_requests: int | None = as_in(BatchSettings, "max_concurrent_requests")
    """Requests that a server of protocol OpenAI has at the same time; others wait in the sidecar's
    queue. Absent: learnt from the server."""
    max_sequences: int | None = as_in(BatchSettings, "max_sequences")
    """Texts that a handler's model generates at the same time; others wait in the sidecar's queue.
    Absent: as many as the model server deems fit."""
    max_tokens_per_step: int | None = as_in(BatchSettings, "max_tokens_per_step")
    """Tokens of prompts and texts together that one step computes. Fewer make steps shorter, more
    read prompts faster. Absent: as many as the model server deems fit."""
    max_context_tokens: int | None = setting(
        Whole(minimum=2, maximum=MOST_CONTEXT_TOKENS), edit=Effect.ROLLS_PODS
    )
    """Tokens of a prompt and its text together; longer requests are refused. An edit replaces the
    pods. Absent: as many as the model takes."""
    kv_cache: KeyValueCache | None = section(KeyValueCache, edit=Effect.ROLLS_PODS)
    """Room for the keys and values of all texts that run. An edit replaces the pods. Absent: the
    model server's own share of the memory that the model leaves."""
    target_first_token_milliseconds: int | None = setting(TARGET_MILLISECONDS)
    """Time from a request's arrival in which its first token should be there. Absent: only callers
    set deadlines."""
    target_token_milliseconds: int | None = setting(TOKEN_MILLISECONDS)
    """Time in which a token should follow the one before it. Absent: none is set, and our own
    engine goes by 180 ms."""
