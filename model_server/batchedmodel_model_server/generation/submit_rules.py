"""Whether a request can ever be served, and what is kept of it and of each of its texts."""

from __future__ import annotations  # array.array takes no type argument at run time

import math
from array import array
from dataclasses import replace
from typing import Final

import numpy as np

from batchedmodel_contract.generation.frames import MOST_LOGPROBS, Sampling, Submit
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.generator import Draw
from batchedmodel_model_server.generation.block_pool import PrefixHashes
from batchedmodel_model_server.lora.registry import Kept
from batchedmodel_scheduling.engine.step_planner import EngineSequence, StepSettings

MOST_TEXTS: Final = 4096
"""So many are taken, whatever runs at once: the caller's queue is elsewhere, but lists of prompts
come whole, and so does all that had begun in an engine which ran more."""
MOST_BYTES: Final = 256 << 20
"""Of the prompts of all that is taken."""
_BOUNDS: Final = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("top_k", 0, math.inf),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("repetition_penalty", 0.01, 100.0),
    ("logprobs", 0, MOST_LOGPROBS),
)


class EngineText:
    """One text, or several choices of it until the first token of each is there."""

    __slots__ = (
        *("blocks", "cached", "choice", "choices", "deadline", "draw", "given", "hashes", "ids"),
        *("sequence", "submit", "unwanted"),
    )

    def __init__(
        self, submit: Submit, choice: int, ids: array[int], hashes: PrefixHashes, deadline: float
    ) -> None:
        self.submit: Final = submit
        self.choice: Final = choice
        self.choices = 1
        """That this is until the first token; then each of them is a text."""
        self.ids: Final = ids
        self.hashes: Final = hashes
        self.cached: int | None = None
        """Tokens of its prompt that it found in the cache when it first ran; None: it has not."""
        self.deadline: Final = deadline
        self.blocks: Final[list[int]] = []
        self.sequence: EngineSequence
        prompt_tokens = len(submit.ids) - submit.given
        self.given = len(ids) - prompt_tokens
        """Tokens of the text itself."""
        self.draw: Final = Draw(submit.sampling, choice, ids, prompt_tokens)
        """Its next token, whichever that is: the ids grow."""
        self.unwanted: Final[set[int]] = set()
        """Of several choices that have not begun, those that nobody waits for."""

    @property
    def begun(self) -> bool:
        """Whether a token of its request was told since that came."""
        return self.given > self.submit.given or self.choice > self.submit.first_choice

    def draws(self, places: int) -> list[Draw]:
        """Its next token; of several choices those of as many more as there are places."""
        more = range(1, min(self.choices, 1 + places))
        return [self.draw, *(self.draw._replace(choice=self.choice + at) for at in more)]

    def fork(self, choice: int) -> EngineText:
        """Another choice of the same prompt, of which nothing is in the cache yet."""
        ids = array("i", self.ids)
        other = EngineText(self.submit, choice, ids, self.hashes.of_fork(ids), self.deadline)
        other.cached = 0  # it is told of their prompt once
        other.sequence = replace(self.sequence, computed=0, blocks=0, shared=0, unused=0)
        return other


class TakenRequest:
    """A request that was taken and has not ended yet."""

    __slots__ = ("adapter", "bytes", "choices", "leaving")

    def __init__(self, submit: Submit) -> None:
        self.adapter: Kept | None = None
        self.bytes: Final = submit.ids.itemsize * len(submit.ids)
        self.choices: Final = set(range(submit.first_choice, submit.first_choice + submit.choices))
        """Those that its caller still waits for."""
        self.leaving = False
        """Whether nobody waits for it, though the engine may have it still."""

    def over(self, texts: int, byte_count: int) -> str | None:
        """Which bound it would pass beside so many texts, and prompts of so many bytes."""
        if texts + len(self.choices) > MOST_TEXTS:
            return f"the engine has {texts} texts already, and takes {MOST_TEXTS}"
        if byte_count + self.bytes > MOST_BYTES:
            return f"the engine has prompts of {byte_count} bytes already, and takes {MOST_BYTES}"
        return None


def check_submit(
    submit: Submit, settings: StepSettings, vocabulary: int, *, max_context_tokens: int
) -> None:
    """Raise `InvalidInput` for one that can never be served."""
    ids, given, choices = submit.ids, submit.given, submit.choices
    if given >= len(ids):
        raise InvalidInput("prompt", "is empty")
    values = np.frombuffer(ids, np.int32)
    wrong = values[(values < 0) | (values >= vocabulary)]
    if len(wrong):
        rule = f"holds a token id that is not from 0 to {vocabulary - 1}"
        raise InvalidInput("prompt", rule, int(wrong[0]))
    if submit.max_tokens <= given:
        raise InvalidInput("max_tokens", f"is not above the {given} tokens given")
    if choices > 1 and given:
        raise InvalidInput("n", "is more than 1 for a text that has begun", choices)
    whole = len(ids) - given + submit.max_tokens
    if whole > max_context_tokens:
        rule = f"with its text has {whole} tokens; the model takes {max_context_tokens}"
        raise InvalidInput("prompt", rule)
    if not settings.holds(whole):
        room = settings.blocks * settings.block_tokens
        raise InvalidInput("prompt", f"with its text has {whole} tokens; the cache holds {room}")
    _check_sampling(submit.sampling)


def _check_sampling(sampling: Sampling) -> None:
    """Refuse values that mean nothing; whoever asks has told its own caller of them."""
    for name, least, most in _BOUNDS:
        value = getattr(sampling, name)
        if value is not None and not least <= value <= most:
            raise InvalidInput(name, f"is not from {least:g} to {most:g}", value)
