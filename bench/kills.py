"""Kills either process at random moments under mixed load: is each answer told once, and whole?

    python bench/kills.py [--kills 200] [--seed N] [--quick] [--json FILE]

Callers ask for small rows, rows of 600 kB, JSON of 1 MiB and streamed texts, each over a connection
of its own that it reads to the end. In turns the model server and the sidecar are killed, half a
second to one and a half after the last one has come back. A caller whose connection met the death
of a sidecar may be cut off there; nobody else may. A 503 that tells a caller to come back before
anything was done is an answer; an accepted request that fails is a lost one.
"""

import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from batchedmodel_contract.manifest.batching import BatchSettings
from bench_report import Figure, at_least, at_most, new_parser, plain, report, tell
from support.chain import Chain, running_chain

KILLS: Final = 200
_QUICK_KILLS: Final = 10
_GIVE_UP_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.02
_ROW_VALUES: Final = 75_000  # 600 kB of int64
_JSON_VALUES: Final = 150_000
_LONGEST_TEXT: Final = 60
_PROMPTS: Final = 8
_CALLERS: Final = {"small": 8, "large": 2, "json": 1, "text": 8}
_SETTINGS: Final = BatchSettings(request_timeout_seconds=30.0)
_PARAMETERS: Final = {"generates": "true", "stepSeconds": "0.01", "blocks": "256"}
_REFUSED: Final = ("not_ready", "queue_full", "predicted_late", "draining")


@dataclass
class Seen:
    """What became of all calls."""

    answers: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    tokens: int = 0
    tokens_lost: int = 0
    tokens_doubled: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """One response; `rest` is what came behind it."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    rest: bytes


def parsed(data: bytes) -> Reply | None:
    """None if the head is not whole."""
    head, mark, rest = data.partition(b"\r\n\r\n")
    if not mark:
        return None
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    status = int(lines[0].split()[1])
    if "chunked" not in headers.get("transfer-encoding", ""):
        size = int(headers.get("content-length", "0"))
        return Reply(status, headers, rest[:size], len(rest) >= size, rest[size:])
    body = b""
    while b"\r\n" in rest:
        size_line, _, rest = rest.partition(b"\r\n")
        size = int(size_line, 16)
        if size == 0:
            return Reply(status, headers, body, rest.startswith(b"\r\n"), rest[2:])
        if len(rest) < size + 2:
            break
        body, rest = body + rest[:size], rest[size + 2 :]
    return Reply(status, headers, body, False, b"")


class Callers:
    """Callers of one chain, until they are told to end."""

    def __init__(self, chain: Chain, seed: int) -> None:
        self.seen: Final = Seen()
        self.sidecars = 0
        """How many sidecars have been killed."""
        self.sidecar_is_there: Final = asyncio.Event()
        self.sidecar_is_there.set()
        self._chain: Final = chain
        self._random: Final = random.Random(seed)
        self._number = 0
        self._texts: dict[int, str] = {}
        self._text_lengths = (1, _LONGEST_TEXT)
        self._goes_on = True

    async def prepare(self) -> None:
        """Learn what each prompt's text is while nothing is killed."""
        for prompt in range(_PROMPTS):
            url = self._chain.url("/v1/completions")
            async with self._chain.session.post(url, json=_completion(prompt)) as response:
                self._texts[prompt] = (await response.json())["choices"][0]["text"]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for kind, count in _CALLERS.items():
                for _ in range(count):
                    group.create_task(self._calls(kind))

    def end(self) -> None:
        self._goes_on = False

    async def _calls(self, kind: str) -> None:
        while self._goes_on:
            await self.sidecar_is_there.wait()
            told = await self.call(kind)
            self.seen.answers[f"{kind}: {told}"] += 1
            await asyncio.sleep(_PAUSE_SECONDS * (1 if told == "right" else 3))

    async def call(self, kind: str) -> str:
        """What became of one call of this kind."""
        self._number += 1
        number = self._number
        prompt, tokens = number % _PROMPTS, self._random.randint(*self._text_lengths)
        if kind == "text":
            document = _completion(prompt) | {"max_tokens": tokens, "stream": True}
            path, body, header = "/v1/completions", json.dumps(document).encode(), ""
        else:
            path, (body, header) = self._chain.infer_path, _inference(kind, number)
        met = self.sidecars
        try:
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                data = await self._read(path, body, header)
        except TimeoutError:
            return self._complain("lost", f"{kind} {number}: no end in {_GIVE_UP_SECONDS:g} s")
        reply = parsed(data)
        if reply is None or not reply.whole:
            if self.sidecars > met or not self.sidecar_is_there.is_set():
                if reply is not None and kind == "text" and reply.status == 200:
                    self._judge_text(reply.body, prompt, tokens, may_end_early=True)
                return "cut off"
            return self._complain("lost", f"{kind} {number}: cut off at {data[:80]!r}")
        if reply.rest:
            return self._complain("doubled", f"{kind} {number}: then {reply.rest[:80]!r}")
        if reply.status != 200:
            reason = reply.headers.get("x-request-outcome", "")
            if reply.status in (429, 503) and reason in _REFUSED:
                return "refused"
            said = f"{reply.status} {reason} {reply.body[:120]!r}"
            return self._complain("lost", f"{kind} {number}: {said}")
        if kind == "text":
            return self._judge_text(reply.body, prompt, tokens, may_end_early=False)
        if not _is_right(kind, number, reply):
            return self._complain("wrong", f"{kind} {number}: {reply.body[:80]!r}")
        return "right"

    async def _read(self, path: str, body: bytes, header: str) -> bytes:
        data = bytearray()
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._chain.port)
            try:
                lines = f"Host: m\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{header}"
                writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
                while piece := await reader.read(2**18):
                    data += piece
            finally:
                writer.transport.abort()
        return bytes(data)

    def _judge_text(self, body: bytes, prompt: int, tokens: int, *, may_end_early: bool) -> str:
        text, failed = "", b'"error"' in body
        for event in body.split(b"\n\n")[:-1]:
            if event.startswith(b'data: {"id"'):
                text += "".join(one["text"] for one in json.loads(event[6:])["choices"])
        wanted = self._texts[prompt][:tokens]
        self.seen.tokens += len(text)
        if not wanted.startswith(text):
            self.seen.tokens_doubled += max(1, len(text) - len(wanted))
            return self._complain("wrong", f"text of {prompt}: {text!r} is not {wanted!r}")
        if may_end_early:
            return "cut off"
        if failed or b"[DONE]" not in body or text != wanted:
            self.seen.tokens_lost += len(wanted) - len(text)
            return self._complain("lost", f"text of {prompt}: ends after {text!r}: {body[-200:]!r}")
        return "right"

    def _complain(self, what: str, how: str) -> str:
        setattr(self.seen, what, getattr(self.seen, what) + 1)
        self.seen.complaints.append(f"{what}: {how}")
        tell(self.seen.complaints[-1])
        return what


def _completion(prompt: int) -> dict[str, object]:
    text = f"{prompt} " * (3 + 4 * prompt)
    return {"model": "m", "prompt": text, "max_tokens": _LONGEST_TEXT, "temperature": 0}


def _row(kind: str, number: int) -> np.ndarray:
    size = {"small": 4, "large": _ROW_VALUES, "json": _JSON_VALUES}[kind]
    return np.arange(number, number + size, dtype="<i8")


def _inference(kind: str, number: int) -> tuple[bytes, str]:
    """Body and header lines."""
    row = _row(kind, number)
    entry: dict[str, object] = {"name": "x", "datatype": "INT64", "shape": [1, row.size]}
    if kind != "large":
        entry["data"] = row.tolist()
        return json.dumps({"inputs": [entry]}).encode(), ""
    entry["parameters"] = {"binary_data_size": row.nbytes}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    head = json.dumps(document).encode()
    return head + row.tobytes(), f"Inference-Header-Content-Length: {len(head)}\r\n"


def _is_right(kind: str, number: int, reply: Reply) -> bool:
    row = _row(kind, number)
    size = reply.headers.get("inference-header-content-length")
    if size is not None:
        return reply.body[int(size) :] == row.tobytes()
    return bool(json.loads(reply.body)["outputs"][0]["data"] == row.tolist())


async def killed(kills: int, seed: int) -> Seen:
    """Kill so often, in turns, and judge all calls."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        async with running_chain(
            Path(folder), handler="simulated", parameters=_PARAMETERS, settings=_SETTINGS
        ) as chain:
            callers = Callers(chain, seed)
            await callers.prepare()
            running = asyncio.create_task(callers.run())
            for number in range(kills):
                await asyncio.sleep(rng.uniform(0.5, 1.5))
                after = len(chain.sidecar.lines)
                if number % 2:
                    callers.sidecar_is_there.clear()
                    chain.sidecar.send(signal.SIGKILL)
                    await chain.sidecar.ended()
                    callers.sidecars += 1
                    await chain.sidecar.start()
                    await chain.listening(after=after)
                    callers.sidecar_is_there.set()
                else:
                    chain.model.send(signal.SIGKILL)
                    await chain.model.ended()
                    await chain.model.start()
                await chain.ready(after=after)
                if number % 20 == 19:
                    tell(f"{number + 1} kills: {dict(callers.seen.answers)}")
            await asyncio.sleep(1.0)
            callers.end()
            await running
            return callers.seen


def figures(seen: Seen, kills: int) -> Sequence[Figure]:
    answered = sum(count for told, count in seen.answers.items() if told.endswith("right"))
    return [
        plain("kills", "")(kills),
        at_least("right answers", answered, "", kills),
        plain("cut off by the death of a sidecar", "")(
            sum(count for told, count in seen.answers.items() if told.endswith("cut off"))
        ),
        plain("told to come back", "")(
            sum(count for told, count in seen.answers.items() if told.endswith("refused"))
        ),
        at_most("answers lost", seen.lost, "", 0),
        at_most("answers doubled", seen.doubled, "", 0),
        at_most("answers wrong", seen.wrong, "", 0),
        plain("tokens of streams", "")(seen.tokens),
        at_most("tokens lost", seen.tokens_lost, "", 0),
        at_most("tokens doubled", seen.tokens_doubled, "", 0),
    ]


def main() -> int:
    parser = new_parser(__doc__ or "")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=48)
    arguments = parser.parse_args()
    kills = _QUICK_KILLS if arguments.quick else arguments.kills
    seen = asyncio.run(killed(kills, arguments.seed))
    return report(figures(seen, kills), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
