"""The judge of `bench/kills` tells lost, doubled and wrong answers and tokens."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from kills import Callers, Seen, parsed
from support.chain import Chain

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
TEXT = "abcdefgh"


def answer(number: int) -> bytes:
    body = json.dumps({"outputs": [{"data": list(range(number, number + 4))}]}).encode()
    return HEAD % len(body) + body


def streamed(text: str, *, ends: bool = True) -> bytes:
    events = [b'data: {"id":1,"choices":[{"text":"%b"}]}\n\n' % one.encode() for one in text]
    body = b"".join([*events, *([b"data: [DONE]\n\n"] if ends else [])])
    return HEAD % len(body) + body


class Read(Callers):
    """Callers that read `data`, each of them; with it the sidecar `dies`."""

    def __init__(self, data: bytes, *, dies: bool = False) -> None:
        super().__init__(cast(Chain, Infers()), seed=1)
        self._data = data
        self._dies = dies
        self._texts = dict.fromkeys(range(8), TEXT)
        self._text_lengths = (len(TEXT), len(TEXT))

    async def _read(self, path: str, body: bytes, header: str) -> bytes:
        self.sidecars += self._dies
        return self._data


class Infers:
    infer_path = "/"


async def judged(data: bytes, kind: str = "small", *, dies: bool = False) -> tuple[str, Seen]:
    callers = Read(data, dies=dies)
    return await callers.call(kind), callers.seen


def test_a_chunked_answer_is_whole_with_its_last_chunk() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = parsed(head + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    assert whole is not None
    assert (whole.body, whole.whole, whole.rest) == (b"abc", True, b"")
    torn = parsed(head + b"2\r\nab\r\n1\r\n")
    assert torn is not None
    assert (torn.body, torn.whole) == (b"ab", False)
    assert parsed(b"HTTP/1.1 200") is None


@pytest.mark.parametrize(
    ("data", "told", "count"),
    [
        (answer(1), "right", lambda seen: seen.lost + seen.wrong + seen.doubled == 0),
        (answer(2), "wrong", lambda seen: seen.wrong == 1),
        (answer(1) + answer(1), "doubled", lambda seen: seen.doubled == 1),
        (answer(1)[:-3], "lost", lambda seen: seen.lost == 1),
        (b"", "lost", lambda seen: seen.lost == 1),
        (b"HTTP/1.1 503 x\r\nX-Request-Outcome: failed\r\n\r\n", "lost", lambda seen: seen.lost),
        (b"HTTP/1.1 503 x\r\nX-Request-Outcome: not_ready\r\n\r\n", "refused", lambda _: True),
    ],
)
async def test_an_answer_is_judged(data: bytes, told: str, count: Callable[[Seen], Any]) -> None:
    found, seen = await judged(data)
    assert found == told
    assert count(seen)


async def test_only_the_death_of_a_sidecar_may_cut_an_answer() -> None:
    found, seen = await judged(answer(1)[:-3], dies=True)
    assert (found, seen.lost) == ("cut off", 0)


@pytest.mark.parametrize(
    ("data", "told", "lost", "doubled"),
    [
        (streamed(TEXT), "right", 0, 0),
        (streamed(TEXT[:5]), "lost", 3, 0),
        (streamed(TEXT, ends=False), "lost", 0, 0),
        (streamed(TEXT + "h"), "wrong", 0, 1),
        (streamed("abbc"), "wrong", 0, 1),
    ],
)
async def test_a_text_is_judged_by_its_tokens(
    data: bytes, told: str, lost: int, doubled: int
) -> None:
    found, seen = await judged(data, "text")
    assert (found, seen.tokens_lost, seen.tokens_doubled) == (told, lost, doubled)
