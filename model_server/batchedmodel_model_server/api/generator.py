"""What the engine asks of a model that generates.

The engine owns sequences and blocks and decides what a step computes. A `StepRunner` owns the
memory of the cache and computes. All its methods run on the compute thread.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from batchedmodel_contract.generation.frames import Sampling


class Draw(NamedTuple):
    """The next token of one text."""

    sampling: Sampling
    choice: int
    """With the seed and the token's place it decides what is drawn."""
    ids: array[int]
    """INT32: all that is known of prompt and text."""
    prompt_tokens: int
    """The first of these that are the prompt."""


class StepPart(NamedTuple):
    """Tokens of one sequence whose keys and values a step computes."""

    ids: array[int]
    """INT32: these tokens."""
    start: int
    """The place of the first of them in the sequence; those before it are in the cache."""
    blocks: Sequence[int]
    """The numbers of its blocks in order, enough for all up to the last of these tokens."""
    draws: Sequence[Draw]
    """What is drawn behind the last of these tokens: nothing where more of the prompt follows,
    several where several choices begin."""
    adapter: int = 0
    """The slot of its adapter; 0 for none."""


class Sampled(NamedTuple):
    """A token that was drawn."""

    token: int
    logprob: float
    """NaN where the draw asks for none."""
    top: tuple[tuple[int, float], ...] = ()


class StepRunner(Protocol):
    """Computes steps over blocks of keys and values that it holds."""

    @property
    def blocks(self) -> int:
        """How many it holds, from 0 on."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        ...

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        """For each part what its draws gave, in their order.

        Raises `OutOfMemory`, `ForwardFailed` and `DeviceLost`. What it wrote to the blocks by then
        is written again by the next try.
        """
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Make a block's content another's as well."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """What the manifest asks of the cache; a handler chooses where it asks for nothing."""

    memory_bytes: int | None = None
    fraction: float | None = None
    """Of the memory that is free once the model is loaded; where no `memory_bytes` are given."""
    max_context_tokens: int | None = None
    """Of a prompt and its text together; None: as many as the model has positions."""


class Generator(NamedTuple):
    """A model that generates, as its handler gives it."""

    runner: StepRunner
    vocabulary: int
    max_context_tokens: int
    stop_ids: tuple[int, ...]
    tokenizer: bytes
    """The tokenizer.json of callers' texts."""
    chat_template: str | None
    special_tokens: Mapping[str, str]
    sampling_defaults: Mapping[str, float] = MappingProxyType({})
    """Of `generation_config.json`: how tokens are chosen where a caller says nothing."""
