"""Arbitrary and damaged requests over sockets: a clear answer or none, and no trace is left."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from support.books import assert_books_balance
from support.chain import Chain
from support.echo_server import EVERY_DATATYPE, echo_chain
from support.process_memory import resident_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWER_SECONDS: Final = 10.0
MORE_SECONDS: Final = 0.3
"""How long a caller that has sent half a request stays."""
DOCUMENT: Final = json.dumps(
    {
        "inputs": [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": [1, 1],
                **(
                    {"parameters": {"binary_data_size": 2}}
                    if spec.datatype in ("FP16", "BF16")
                    else {"data": [{"BYTES": "a", "BOOL": True}.get(spec.datatype, 1)]}
                ),
            }
            for spec in EVERY_DATATYPE.inputs
        ]
    }
).encode()
BODY: Final = DOCUMENT + b"\0" * 4
PATHS: Final = [
    "/v2/models/m/infer", "/v2/models/m/versions/3/infer", "/v1/models/m:predict",
    "/v1/embeddings", "/classify", "/rerank", "/v2/models/m", "/v2", "/", "/nothing",
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all requests, which must be unharmed when the last of them is through."""
    async with echo_chain(
        tmp_path_factory.mktemp("fuzzed"), EVERY_DATATYPE, max_body_bytes=100_000, log_level="debug"
    ) as running:
        await assert_unharmed(running)
        memory = resident_bytes(running.sidecar.pid)
        yield running
        await assert_unharmed(running)
        assert resident_bytes(running.sidecar.pid) < memory + 100_000_000


def request(
    method: str, path: str, body: bytes, headers: dict[str, str], *, framed: bool = True
) -> bytes:
    """The bytes of a request; its own headers win over those that it needs."""
    named = {"Host": "x", "Connection": "close"}
    if framed:
        named["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in (named | headers).items())]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body


GOOD: Final = request(
    "POST", PATHS[0], BODY, {"Inference-Header-Content-Length": str(len(DOCUMENT))}
)


def is_whole(data: bytes) -> bool:
    """Whether it is a request and all of its body, so that an answer is due."""
    head, end, body = data.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    if not end or not re.fullmatch(rb"[A-Z]+ /[!-~]* HTTP/1\.1", line):
        return False
    if not all(re.fullmatch(rb"[\w-]+:[^\r\n\0]*", one) for one in fields):
        return False
    framing = [
        one.lower().replace(b" ", b"")
        for one in fields
        if one.lower().startswith((b"content-length", b"transfer-encoding"))
    ]
    if framing == [b"transfer-encoding:chunked"]:
        return bool(re.fullmatch(rb"(5\r\nhello\r\n)*0\r\n\r\n", body))
    if not framing:
        return not body
    length = re.fullmatch(rb"content-length:(\d{1,9})", framing[0])
    return len(framing) == 1 and length is not None and len(body) == int(length[1])


async def exchanged(chain: Chain, data: bytes) -> bytes:
    """What comes back until the connection is closed, or until the caller's patience ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    due, answer = is_whole(data), b""
    try:
        writer.write(data)
        while True:
            waits = due and not re.search(rb"(?:^|\r\n\r\n)HTTP/1\.1 [2-5]", answer)
            async with asyncio.timeout(ANSWER_SECONDS if waits else MORE_SECONDS):
                piece = await reader.read(65_536)
            if not piece:
                break
            answer += piece
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()
    return answer


async def assert_all_clear(chain: Chain, requests: list[bytes]) -> None:
    """Send them all at once, each on a connection of its own."""
    answers = await asyncio.gather(*(exchanged(chain, one) for one in requests))
    for sent, answer in zip(requests, answers, strict=True):
        try:
            assert_clear(sent, answer)
        except AssertionError as error:
            error.add_note(f"sent {sent!r}, got {answer!r}")
            raise


def assert_clear(sent: bytes, answer: bytes) -> None:
    """A whole request is answered; each answer is whole, and blames the caller or serves it."""
    statuses = statuses_in(answer, to_head=sent.startswith(b"HEAD "))
    assert statuses or not is_whole(sent)
    assert all(200 <= status < 500 for status in statuses)


def statuses_in(data: bytes, *, to_head: bool) -> list[int]:
    """Of the answers, each of which has a head and as much of a body as that says."""
    statuses = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
        assert found, head
        assert end, head
        lengths = re.findall(rb"\r\ncontent-length: (\d+)(?=\r\n|$)", head, re.IGNORECASE)
        if found[1] == b"100":
            assert not lengths, head
            continue
        assert len(lengths) == 1, head
        # A refusal of bytes that are no HTTP has a body, whatever stood before them; all are JSON.
        size = 0 if to_head and not data.startswith(b"{") else int(lengths[0])
        assert len(data) >= size, "the body is shorter than its head says"
        statuses.append(int(found[1]))
        data, to_head = data[size:], False
    return statuses


async def assert_unharmed(chain: Chain) -> None:
    """The right request is answered, the books balance, nothing of ours is in the log."""
    assert (await exchanged(chain, GOOD)).startswith(b"HTTP/1.1 200 ")
    await assert_books_balance(chain)
    lines = chain.sidecar.lines
    wrong = [index for index, line in enumerate(lines) if " ERROR " in line]
    assert not wrong, "\n".join(lines[wrong[0] - 3 : wrong[0] + 40])


def many(requests: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """A crowd of requests, so that those which wait for more wait together."""
    return st.lists(requests, min_size=10, max_size=40)


fuzzed = settings(max_examples=10)
header_values = st.text(st.characters(exclude_characters="\r\n\0"), max_size=30) | st.sampled_from(
    ["0", "-1", "1" * 30, "gzip", "br", "chunked", "100-continue", "keep-alive, x", "\udcff\udcfe"]
)
header_names = st.sampled_from(
    (
        "Content-Length Content-Encoding Transfer-Encoding Expect Accept-Encoding Connection "
        "Upgrade Inference-Header-Content-Length x-request-timeout-ms x-request-priority "
        "x-request-group x-batch traceparent tracestate x-request-id Content-Type"
    ).split()
)
requests_of_a_kind = st.builds(
    lambda method, path, headers, body, framed: request(method, path, body, headers, framed=framed),
    st.sampled_from(["POST", "GET", "HEAD", "PUT", "OPTIONS", "X"]),
    st.sampled_from(PATHS) | st.from_regex(r"/[!-~]{0,30}", fullmatch=True),
    st.dictionaries(header_names, header_values, max_size=3),
    st.sampled_from([BODY, DOCUMENT, b"", b"{}", gzip.compress(DOCUMENT)]) | st.binary(max_size=50),
    st.booleans(),
)
damaged = st.builds(
    lambda at, damage, lost: GOOD[:at] + damage + GOOD[at + lost :],
    st.integers(0, len(GOOD)),
    st.binary(max_size=3),
    st.integers(0, 3),
)
chunked = st.lists(
    st.sampled_from([b"", b"5\r\nhello\r\n", b"0\r\n\r\n", b"zz\r\n", b"5\r\nhel"])
).map(
    lambda chunks: request(
        "POST", PATHS[0], b"".join(chunks), {"Transfer-Encoding": "chunked"}, framed=False
    )
)


@fuzzed
@given(many(st.binary(max_size=300)))
async def test_any_bytes_are_answered_or_hung_up_on(chain: Chain, sent: list[bytes]) -> None:
    await assert_all_clear(chain, sent)


@fuzzed
@given(many(requests_of_a_kind))
async def test_any_method_path_and_headers(chain: Chain, sent: list[bytes]) -> None:
    await assert_all_clear(chain, sent)


@fuzzed
@given(many(damaged))
async def test_a_right_request_with_bytes_changed(chain: Chain, sent: list[bytes]) -> None:
    await assert_all_clear(chain, sent)


@fuzzed
@given(many(st.integers(0, len(GOOD) - 1).map(lambda at: GOOD[:at])))
async def test_a_right_request_cut_short(chain: Chain, sent: list[bytes]) -> None:
    await assert_all_clear(chain, sent)


@fuzzed
@given(many(chunked))
async def test_any_chunks(chain: Chain, sent: list[bytes]) -> None:
    await assert_all_clear(chain, sent)
