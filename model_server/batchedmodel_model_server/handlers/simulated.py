"""A device that takes time instead of computing: what benchmarks and tests run against.

A forward pass takes `fixedSeconds + rowSeconds x rows + tokenSeconds x tokens`, one pass after the
other, without using a CPU. Like a GPU's queue it has its own timeline: a pass starts when the one
before it ends, or when it is handed over if that is later. A thread that wakes late does not make
the next pass late. Where `capturedRows` names sizes, a pass takes as long as one of the next of
them, as where sizes are captured ahead; beyond the last it takes what it takes.

It answers `y` = `x`, of whatever type and size (`datatype`, `elements`), or as many numbers as
`floats` says, like a model of embeddings.

With `generates` it generates texts as well. A step takes `stepSeconds + sequenceSeconds x sequences
+ prefillTokenSeconds x tokens of prompts`. Each token is drawn from all that is known of its text,
and from the seed unless the temperature is 0: whoever goes on elsewhere with prompt and tokens gets
the same rest. Tokens are bytes; those that are drawn are visible characters.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import ctypes
import json
import logging
import math
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import MAX_LENGTH
from batchedmodel_model_server.api.generator import Draw, Generator, Sampled, StepPart
from batchedmodel_model_server.api.handler import DTYPES, PARAMETERS, Array, Batch, Handler, Spec

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
_DEFAULTS: Final = {"fixedSeconds": "0.005", "rowSeconds": "0.0001", "tokenSeconds": "0"}
_STEP: Final = {"stepSeconds": "0.02", "sequenceSeconds": "0", "prefillTokenSeconds": "0.00002"}
_CACHE: Final = {
    "blocks": "4096",
    "blockTokens": "16",
    "vocabulary": str(VOCABULARY),
}
_PR_SET_TIMERSLACK: Final = 29  # from the kernel's prctl.h
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRunner:
    """Lets steps take their time, and draws."""

    blocks: int
    """How many it pretends to hold."""
    block_tokens: int
    seconds: Callable[[int, int], float]
    """Of a step with so many sequences and tokens of prompts."""
    timeline: _Timeline

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        """Draw, and return when the step would have ended."""
        began = self.timeline.begin_step()
        found = [[_sampled(draw) for draw in part.draws] for part in parts]
        read = sum([len(part.ids) for part in parts if len(part.ids) > 1])
        self.timeline.run(began, self.seconds(len(parts), read))
        return found

    def copy_block(self, source: int, target: int) -> None:
        """Nothing is in a block."""


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
    plain = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), False)
    byte_level = {"type": "ByteLevel", **plain}
    whole = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [
        {"id": _BYTES + at, "content": content, **whole, "special": True}
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


class Simulated(Handler):
    """Answers after the time that the parameters say."""

    inputs: Mapping[str, Spec] = {"x": Spec("INT64", ("L",), max=MAX_LENGTH)}
    outputs: Mapping[str, Spec] = {"y": Spec("INT64", ("L",))}
    platform = "simulated"
    parameter_names: ClassVar[tuple[str, ...]] = (
        *_DEFAULTS,
        "capturedRows",
        "datatype",
        "elements",
        "floats",
        "generates",
        *_STEP,
        *_CACHE,
    )

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeline = _Timeline(clock, sleep)

    def device(self) -> str:
        """No real one."""
        return "simulated"

    def load(self, path: Path | None, device: str) -> None:
        """Read the parameters; raises `InvalidInput`."""
        given = {**_DEFAULTS, **self.parameters}
        self._fixed, self._row, self._token = (_seconds(name, given[name]) for name in _DEFAULTS)
        self._captured: tuple[int, ...] = ()
        if "capturedRows" in given:
            self._captured = _ascending_sizes("capturedRows", given["capturedRows"])
        self.cost_rule = CostRule.ROWS if self._token == 0 else CostRule.PACKED
        datatype = given.get("datatype", "INT64")
        if datatype not in DTYPES:
            rule = f"is not one of {', '.join(DTYPES)}"
            raise InvalidInput(f"{PARAMETERS}.datatype", rule, datatype)
        x = Spec(datatype, ("L",), max=MAX_LENGTH)
        if "elements" in given:
            x = Spec(datatype, (_size("elements", given["elements"]),))
        self.inputs, self.outputs = {"x": x}, {"y": Spec(datatype, x.shape)}
        self._answer: Array | None = None
        if "floats" in given:
            size = _size("floats", given["floats"])
            # Numbers of as many digits as a model's.
            self._answer = np.sin(np.arange(1, size + 1)).astype(np.float32)
            self.outputs = {"y": Spec("FP32", (size,))}
        generates = given.get("generates", "false")
        if generates not in ("true", "false"):
            raise InvalidInput(f"{PARAMETERS}.generates", "is neither true nor false", generates)
        for name in () if generates == "true" else (*_STEP, *_CACHE):
            if name in given:
                raise InvalidInput(f"{PARAMETERS}.{name}", "needs generates: true", given[name])
        if generates == "true":
            self.generator = self._generator({**_STEP, **_CACHE, **self.parameters})
        _wake_on_time()

    def _generator(self, given: Mapping[str, str]) -> Generator:
        step, sequence, token = (_seconds(name, given[name]) for name in _STEP)
        blocks, block_tokens, vocabulary = (_size(name, given[name]) for name in _CACHE)
        if vocabulary < VOCABULARY:
            rule = f"is below the tokenizer's {VOCABULARY}"
            raise InvalidInput(f"{PARAMETERS}.vocabulary", rule, vocabulary)
        runner = SimulatedRunner(
            blocks=blocks,
            block_tokens=block_tokens,
            seconds=lambda sequences, tokens: step + sequence * sequences + token * tokens,
            timeline=self._timeline,
        )
        most_context = self.cache.max_context_tokens or CONTEXT_TOKENS
        return Generator(
            runner=runner,
            vocabulary=vocabulary,
            max_context_tokens=min(blocks * block_tokens, most_context),
            stop_ids=(_BYTES,),
            tokenizer=_tokenizer(),
            chat_template=_CHAT_TEMPLATE,
            special_tokens={"eos_token": _SPECIAL[0]},
        )

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Sleep until the pass would have ended."""
        seconds = self._seconds(batch.rows, int(batch.lengths.sum()))
        self._timeline.run(batch.handed_over, seconds)
        if self._answer is None:
            return {"y": batch.array("x")}
        return {"y": np.broadcast_to(self._answer, (batch.rows, len(self._answer)))}

    def predicted_seconds(self, rows: int, length: int) -> float:
        """The formula itself."""
        return self._seconds(rows, rows * length)

    def _seconds(self, rows: int, tokens: int) -> float:
        captured = self._captured
        if captured and rows <= captured[-1]:
            rows = captured[bisect_left(captured, rows)]
        return self._fixed + self._row * rows + self._token * tokens


class _Timeline:
    """When the device is at work."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._free_at = 0.0
        self._late = 0.0
        """How long after its end the last pass returned."""

    def run(self, handed_over: float, seconds: float) -> None:
        """Return when a pass has ended that begins as soon as it is handed over and can."""
        self._free_at = max(handed_over, self._free_at) + seconds
        # A sleep may end early when a signal arrives, and by a clock's rounding.
        while (left := self._free_at - self._clock()) > 0:
            self._sleep(left)
        self._late = self._clock() - self._free_at

    def begin_step(self) -> float:
        """When a step is handed over: now, as it needs what came before, and less how late the
        thread woke up for that."""
        return self._clock() - self._late


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidInput(f"{PARAMETERS}.{name}", "is not a number of seconds, 0 or more", text)
    return value


def _size(name: str, text: str) -> int:
    # int() itself would refuse thousands of digits, in words of its own.
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LENGTH))
    if not is_short or not 1 <= int(text) <= MAX_LENGTH:
        rule = f"is not a whole number from 1 to {MAX_LENGTH}"
        raise InvalidInput(f"{PARAMETERS}.{name}", rule, text)
    return int(text)


def _ascending_sizes(name: str, text: str) -> tuple[int, ...]:
    sizes = tuple(_size(name, part.strip()) for part in text.split(","))
    if list(sizes) != sorted(set(sizes)):
        raise InvalidInput(f"{PARAMETERS}.{name}", "does not ascend", text)
    return sizes


def _wake_on_time() -> None:
    """The kernel may delay a thread's wake-ups by 50 us to bundle them; ask it not to."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        _log.info("timer slack cannot be set here; the simulated device wakes a little later")
