"""What an engine is asked for, and what its steps did: the records of frames about texts.

The engine knows token ids only. It has no memory of what it was sent before: whoever asked holds
every token that came, and goes on elsewhere with prompt and tokens as one prompt.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

MOST_LOGPROBS: Final = 20
"""Of the most probable tokens, that are told with each token."""


class Finish(IntEnum):
    """Whether a token was the last one of its text, and why."""

    NONE = 0
    STOP = 1
    """It is one of the stop ids, and no part of the text."""
    LENGTH = 2
    """As many as were asked for are there."""
    FAILED = 3
    """The engine gives up; there is no token."""


class Refusal(IntEnum):
    """Why the engine did not take a request, or ended it before its first token."""

    INVALID = 1
    """It can never be served as it is."""
    LATE = 2
    """Its deadline for the first token passed."""
    BUSY = 3
    """There is no room for it now: it may come again."""
    FAILED = 4
    """The model failed over it."""


class Sampling(NamedTuple):
    """How the next token is chosen from the model's scores (logits)."""

    temperature: float = 1.0
    """0: the token with the highest score."""
    top_p: float = 1.0
    """Of the most probable tokens, as many as have this much probability together."""
    top_k: int = 0
    """So many of the most probable tokens; 0: all."""
    min_p: float = 0.0
    """Tokens that are at least so probable as the most probable one, times this."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive scores of tokens in prompt or text, and multiplies negative ones."""
    seed: int = 0
    """With the choice's number and the token's place in the text it decides every draw."""
    logprobs: int | None = None
    """So many of the most probable tokens are told with each token; None: no probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A text to be generated, or several choices of one."""

    id: int
    """Never used again on this connection."""
    ids: array[int]
    """INT32: the prompt, and behind it what the text has already."""
    given: int = 0
    """How many of them are tokens of the text: they count for penalties, seed and length."""
    max_tokens: int
    """Tokens of the text in all, those given included."""
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    """A text ends with the first of these that is chosen."""
    choices: int = 1
    """How many texts to make of the prompt; more than one only where nothing is given."""
    first_choice: int = 0
    """The number of the first of them; it differs from 0 where one of several goes on."""
    priority: int = 2
    """1 the highest, 3 the lowest."""
    deadline: float | None = None
    """Seconds from now in which the first token must be there, or it is refused as late."""
    salt: str = ""
    """Whose it is. Texts of one salt share what is computed of beginnings that they have in common;
    texts of different salts never do, and share the engine fairly."""
    weight: float = 1.0
    """How much of the engine is due to this salt beside others."""
    adapter: int = 0
    """The number of its adapter; 0 for none. Texts of different ones share nothing either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Nobody waits for a request, or for one of its choices, any more."""

    id: int
    choice: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Bounds that hold from the next step on."""

    max_sequences: int
    max_tokens_per_step: int
    token_seconds: float | None
    """Target of the time between two tokens of a text; None: there is none."""


class Token(NamedTuple):
    """One token of one text."""

    id: int
    choice: int
    token: int
    logprob: float
    """Natural logarithm of its probability; NaN where nobody asked."""
    finish: Finish
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their logprobs, where they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step of the engine did, and how the engine is behind it."""

    seconds: float
    """That the step took; 0 for a report without a step."""
    running: int
    waiting: int
    """Sequences that the engine has and that do not run."""
    free_blocks: int
    blocks: int
    backlog: int
    """Tokens of prompts that are still to be computed."""
    preemptions: int
    """Of sequences, since the engine's start."""
    prefill_tokens: int
    """Of prompts, computed since the engine's start."""
    tokens: Sequence[Token] = ()
    cached: tuple[tuple[int, int], ...] = ()
    """Of requests whose first token is among these: the id, and the tokens of its prompt that were
    in the cache. A request that found none, or came with tokens of its text, is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request of which nothing comes."""

    id: int
    why: Refusal
    message: str
