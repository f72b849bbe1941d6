"""A request for text as the engine needs it, whichever protocol it came in."""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from dataclasses import dataclass
from enum import StrEnum

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_scheduling.generation.requests import AtOnce
from batchedmodel_sidecar.generation.fields import Fields

MOST_TEXTS = 128
"""Texts that one request may ask for."""


class TextEndpoint(StrEnum):
    """Where texts are asked for."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    GENERATE = "generate"
    """Triton's, with a whole answer."""
    GENERATE_STREAM = "generate_stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """Checked and tokenised."""

    endpoint: TextEndpoint
    prompts: tuple[array[int], ...]
    """INT32 token ids; each prompt has `choices` texts."""
    sampling: Sampling
    seeded: bool
    """Whether its caller chose the seed; otherwise it is made up for each request."""
    max_tokens: int
    """Of each text."""
    stop: tuple[str, ...] = ()
    """A text ends in front of the first of these that comes."""
    stop_ids: tuple[int, ...] = ()
    choices: int = 1
    streams: bool = False
    include_usage: bool = False
    """Whether a stream ends with how many tokens there were."""
    id: str | None = None
    """Triton's name of the request, which its answer repeats."""
    adapter: str | None = None
    """What its body names that is not the model itself."""

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))

    def fields(
        self, model: str, adapter: str | None, engine: GenerationDescription, sequences: int
    ) -> Fields:
        """What matters to its queue; `sequences`: see `at_once`."""
        return Fields(
            model=adapter or model,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            choices=self.texts,
            # Its tokens are seen as they come, whatever its caller gets.
            streams=True,
            adapter=adapter,
            at_once=self.at_once(engine, sequences),
            whole=not self.streams,
            least_tokens=self.least_tokens,
        )

    def at_once(self, engine: GenerationDescription, sequences: int) -> AtOnce:
        """How much of it an engine runs at once that runs so many, where it has nothing else.

        Texts of one prompt share it, and begin together where there are places for them. Of a long
        list of prompts each begins where there is room for it.
        """
        if len(self.prompts) == 1:
            return AtOnce(len(self.prompts[0]), min(self.choices, sequences))
        longest = max(map(len, self.prompts))
        held = engine.blocks * engine.block_tokens // (longest + self.max_tokens)
        texts = max(1, min(self.texts, sequences, held))
        return AtOnce(min(self.prompt_tokens, texts * longest), texts)

    @property
    def least_tokens(self) -> int:
        """Of each text: nothing but its greatest length may end it, or anything may."""
        return 1 if self.stop or self.stop_ids else self.max_tokens

    @property
    def texts(self) -> int:
        """How many are generated."""
        return len(self.prompts) * self.choices
