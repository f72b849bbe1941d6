"""Streams that are asked for, what became of them, and the process that asks.

Called by `streams`; the process is `stream_load`. Both know this module, which knows how requests
and records travel between them as JSON, and the common words of a stream's fate.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

MODEL: Final = "m"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MOST_TOKENS: Final = 60
_START_SECONDS: Final = 30.0
BIN_SECONDS: Final = 0.1
"""In which the tokens of all streams are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One request."""

    mark: int
    """A number of its own, which its tokens' texts have."""
    tokens: int
    marked: bool = True
    """Whether it is for the simulated foreign engine, which is told length and mark. Of any other,
    each event with text counts as a token."""
    path: str = CHAT
    prompt_bytes: int = 256
    prompt_ids: Sequence[int] | None = None
    """Of a completion, in the place of a text."""
    at: float = 0.0
    """Seconds after the beginning; unless the load is a closed loop."""
    address: str = "127.0.0.1"
    """Where it comes from, by which tenants are told apart."""
    allowed_tokens: int = MOST_TOKENS
    """What the request says of its length, where it is marked."""
    leaves_after: int | None = None
    """The number of tokens after which the caller hangs up."""
    pauses_after: int | None = None
    """The caller reads nothing for a time after each so many tokens."""
    pause_seconds: float = 0.0
    receive_buffer: int | None = None
    """Bytes of the connection's buffer."""
    script: Mapping[str, Any] = field(default_factory=dict)
    """What else the simulated engine is to do."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What else the request says, where it is not marked."""

    def body(self) -> bytes:
        """What is sent."""
        # No prompt begins as another, or it would be found in an engine's cache.
        text = f"{self.mark} ".ljust(self.prompt_bytes, "w")[: self.prompt_bytes]
        document: dict[str, Any] = {"model": MODEL, "stream": True}
        if self.path == CHAT:
            document["messages"] = [{"role": "user", "content": text}]
        else:
            document["prompt"] = self.prompt_ids or text
        if self.marked:
            document["max_tokens"] = max(self.allowed_tokens, self.tokens)
        else:
            document |= {"max_tokens": self.tokens, "temperature": 0, **self.fields}
        return orjson.dumps(document)

    def told(self) -> bytes:
        """What the engine is told in a header that a real one would not know."""
        return orjson.dumps({"mark": self.mark, "tokens": self.tokens, **self.script})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLoad:
    """Streams at their times, or in a closed loop of so many."""

    port: int
    streams: Sequence[Stream]
    seconds: float
    """After which none begins."""
    closed: int | None = None
    grace_seconds: float = 0.0
    """For which those that run then may go on; the rest are hung up on."""


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one stream; times are seconds after the beginning."""

    mark: int
    expected: int
    due: float
    sent: float
    status: int = 0
    """Of the answer; 0 while there is none."""
    first: float | None = None
    """When its first token came."""
    last: float = 0.0
    tokens: int = 0
    longest_gap: float = 0.0
    lost: int = 0
    doubled: int = 0
    foreign: int = 0
    """Tokens of other streams, or that come too early in the order."""
    told_reason: bool = False
    """Whether a token came with why it is the last."""
    told_end: bool = False
    """Whether the event came that ends all data."""
    error_event: bool = False
    ended: float | None = None
    """When the answer was over, by its own word or with its connection."""
    whole: bool = False
    """Whether the answer ended as HTTP wants it."""
    left: bool = False
    """Whether the caller hung up."""

    @property
    def first_seconds(self) -> float | None:
        """From when it was due."""
        return None if self.first is None else self.first - self.due

    @property
    def token_seconds(self) -> float:
        """The mean between two tokens."""
        return (self.last - (self.first or 0.0)) / max(1, self.tokens - 1)

    @property
    def completed(self) -> bool:
        """Whether all came that there was."""
        return self.whole and self.told_end and self.told_reason and self.tokens == self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """Of a load."""

    records: Sequence[Record]
    arrivals: Sequence[int]
    """Tokens of all streams in each bin of time."""
    began: float
    """The moment on the clock that all processes share, from which times count."""
    open_at_end: int
    """Streams that had neither an end nor a refusal when the last had begun."""
    cpu_seconds: float
    """Of the load generator."""

    def token_rate(self, since: float, until: float) -> float:
        """Tokens per second between two times, which are whole bins."""
        bins = self.arrivals[round(since / BIN_SECONDS) : round(until / BIN_SECONDS)]
        return sum(bins) / (until - since)


async def run_streams(load: StreamLoad) -> StreamResult:
    """Ask for them from a process of its own."""
    return result_of(await asyncio.to_thread(_run, load))


def _run(load: StreamLoad) -> bytes:
    script = Path(__file__).with_name("stream_load.py")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        told = Path(folder, "result.json")
        subprocess.run(
            [sys.executable, str(script), str(told)],
            input=orjson.dumps(load),
            timeout=load.seconds + load.grace_seconds + _START_SECONDS,
            check=True,
        )
        return told.read_bytes()


def load_of(text: bytes) -> StreamLoad:
    """The load as the process is given it."""
    given = orjson.loads(text)
    streams = [Stream(**one) for one in given.pop("streams")]
    return StreamLoad(streams=streams, **given)


def result_of(text: bytes) -> StreamResult:
    """The result as the process gives it."""
    given = orjson.loads(text)
    return StreamResult(records=[Record(**one) for one in given.pop("records")], **given)


def text_of(result: StreamResult) -> bytes:
    """The other direction."""
    return orjson.dumps(asdict(result))
