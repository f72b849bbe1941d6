"""Texts of a device that takes time instead of computing.

A step takes `stepSeconds + sequenceSeconds x sequences + prefillTokenSeconds x tokens of prompts`.
Each token is drawn from all that is known of its text, and from the seed unless the temperature is
0: whoever goes on elsewhere with prompt and tokens gets the same rest. Tokens are bytes; those that
are drawn are visible characters.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw, Generator, Sampled, StepPart

CONTEXT_TOKENS: Final = 32_768
"""Of a prompt and its text, where the manifest asks for no less."""
_FIRST, _LAST = ord("!"), ord("~")
_DRAWN: Final = _LAST - _FIRST + 1
_SPECIAL: Final = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_BYTES: Final = 256
VOCABULARY: Final = _BYTES + len(_SPECIAL)
"""Token ids of the tokenizer."""
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRunner:
    """Lets steps take their time, and draws."""

    blocks: int
    """How many it pretends to hold."""
    block_tokens: int
    seconds: Callable[[int, int], float]
    """Of a step with so many sequences and tokens of prompts."""
    begin: Callable[[], float]
    """When a step begins."""
    end: Callable[[float, float], None]
    """Returns when a step has ended that began then and takes so long."""

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        """Draw, and return when the step would have ended."""
        began = self.begin()
        found = [[_sampled(draw) for draw in part.draws] for part in parts]
        read = sum([len(part.ids) for part in parts if len(part.ids) > 1])
        self.end(began, self.seconds(len(parts), read))
        return found

    def copy_block(self, source: int, target: int) -> None:
        """Nothing is in a block."""


def generator(runner: SimulatedRunner, vocabulary: int, most_context: int | None) -> Generator:
    """The model around a runner; `most_context`: what the manifest allows, if anything."""
    room = runner.blocks * runner.block_tokens
    return Generator(
        runner=runner,
        vocabulary=vocabulary,
        max_context_tokens=min(room, most_context or CONTEXT_TOKENS),
        stop_ids=(_BYTES,),
        tokenizer=_tokenizer(),
        chat_template=_CHAT_TEMPLATE,
        special_tokens={"eos_token": _SPECIAL[0]},
    )


def drawn(ids: Sequence[int], sampling: Sampling, choice: int) -> int:
    """The token that follows these, an `array` of INT32."""
    salt = 0 if sampling.temperature == 0 else hash((sampling.seed, choice)) & 0xFFFF_FFFF
    return _FIRST + zlib.crc32(ids, salt) % _DRAWN  # type: ignore[arg-type]


def _sampled(draw: Draw) -> Sampled:
    token = drawn(draw.ids, draw.sampling, draw.choice)
    wanted = draw.sampling.logprobs
    if wanted is None:
        return Sampled(token, math.nan)
    # Each is half as probable as the one before it.
    others = ((_FIRST + (token - _FIRST + at) % _DRAWN, at) for at in range(min(wanted, _DRAWN)))
    return Sampled(token, -math.log(2), tuple((one, -(at + 1) * math.log(2)) for one, at in others))


def _tokenizer() -> bytes:
    """A tokenizer.json: each byte of UTF-8 is a token, and there are a few special ones."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    special = [
        {
            "id": _BYTES + at,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for at, content in enumerate(_SPECIAL)
    ]
    model = {"type": "BPE", "vocab": _byte_characters(), "merges": []}
    document = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": model,
    }
    return json.dumps(document).encode()


def _byte_characters() -> Mapping[str, int]:
    """What such files call each byte: its own character where that is visible, else another one."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(_BYTES) if byte not in visible]
    names = {byte: chr(_BYTES + at) for at, byte in enumerate(hidden)}
    return {names.get(byte, chr(byte)): byte for byte in range(_BYTES)}
