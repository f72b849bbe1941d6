"""What a head says: the same as it says to aiohttp, which reads the rest, or nothing."""

import asyncio
from typing import Final

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given
from hypothesis import strategies as st

from batchedmodel_http.connection import HeadCache
from batchedmodel_http.request_head import RequestHead, path_and_query

LOOP: Final = asyncio.new_event_loop()
BEHIND: Final = b"GET /behind HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def _closed() -> None:
    LOOP.close()  # a parser asks for a loop, and what is tested here never runs one


@pytest.fixture
def headings() -> HeadCache[RequestHead]:
    return HeadCache(LOOP, RequestHead)


def head(*lines: str, first: str = "POST /call HTTP/1.1") -> bytes:
    return "\r\n".join([first, "Host: x", *lines, "", ""]).encode()


def test_a_plain_head_is_understood_and_kept(headings: HeadCache[RequestHead]) -> None:
    asked = headings.of(head("Content-Length: 5", "X-Name: a"))
    assert asked is not None
    assert (asked.method, asked.path, asked.declared) == ("POST", "/call", 5)
    assert asked.headers["x-name"] == "a"
    assert headings.of(head("Content-Length: 5", "X-Name: a")) is asked


def test_without_a_length_there_is_no_body(headings: HeadCache[RequestHead]) -> None:
    asked = headings.of(head(first="GET /a%20b?c=d HTTP/1.1"))
    assert asked is not None
    assert (asked.path, asked.query, asked.declared) == ("/a%20b", "?c=d", 0)


@pytest.mark.parametrize(
    ("target", "understood"),
    [
        ("/a", ("/a", "")),
        ("/a?", ("/a", "?")),
        ("/a?b?c", ("/a", "?b?c")),
        ("/a?next=http://b.example/c?d", ("/a", "?next=http://b.example/c?d")),
        ("/http://b.example/c", ("/http://b.example/c", "")),
        ("http://b.example/c?d=e://f", ("/c", "?d=e://f")),
        ("http://b.example", ("/", "")),
        ("http://b.example?c", ("/", "?c")),
    ],
)
def test_of_a_target_only_the_servers_name_is_left_out(
    target: str, understood: tuple[str, str]
) -> None:
    assert path_and_query(target) == understood


@pytest.mark.parametrize("offered", ["h2c", "websocket", "TLS/1.0"])
def test_an_offer_of_another_protocol_changes_nothing(
    headings: HeadCache[RequestHead], offered: str
) -> None:
    asked = headings.of(head("Connection: upgrade", f"Upgrade: {offered}", "Content-Length: 5"))
    assert asked is not None
    assert asked.declared == 5


def test_empty_lines_before_a_request_are_nothing(headings: HeadCache[RequestHead]) -> None:
    asked = headings.of(b"\r\n\r\n")
    assert asked is None
    asked = headings.of(b"\r\n" + head("Content-Length: 5"))
    assert asked is not None
    assert asked.declared == 5


@pytest.mark.parametrize(
    "wrong",
    [
        head(first="POST /call HTTP/1.0"),
        head("Connection: close"),
        head("Connection: keep-alive, close"),
        head(first="CONNECT a:80 HTTP/1.1"),
        head("Content-Length: 5", first="CONNECT a:80 HTTP/1.1"),
        head("Expect: 100-continue", "Content-Length: 5"),
        head("Transfer-Encoding: chunked"),
        head("Transfer-Encoding: chunked", "Content-Length: 5"),
        head("Transfer-Encoding: gzip", "Content-Length: 5"),
        head("Content-Length: 5", "Content-Length: 5"),
        head("Content-Length: 5", "Content-Length: 6"),
        head("Content-Length: 5, 5"),
        head("Content-Length: +5"),
        head("Content-Length: -5"),
        head("Content-Length: 0x5"),
        head("Content-Length: \u0665"),
        head("Content-Length: "),
        head("Content-Length: " + "9" * 30),
        head("Content-Length : 5"),
        head("X: a", " folded", "Content-Length: 5"),
        head("X: a\nContent-Length: 7", "Content-Length: 5"),
        head("X: a\rContent-Length: 7"),
        head().replace(b"\r\n", b"\n", 2),
        head().replace(b"\r\n", b"\n") + b"\r\n\r\n",
        head() + head(),
        b"\x16\x03\x01\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ],
)
def test_what_is_not_plain_or_not_http_is_for_others(
    headings: HeadCache[RequestHead], wrong: bytes
) -> None:
    assert headings.of(wrong) is None
    assert headings.of(wrong) is None, "the second time as well"


def test_however_many_heads_come_few_are_kept(headings: HeadCache[RequestHead]) -> None:
    first = headings.of(head("X: first"))
    for number in range(3000):
        assert headings.of(head(f"X: {number}")) is not None
    again = headings.of(head("X: first"))
    assert again is not first, "it was forgotten"
    assert again is not None


names = st.sampled_from(
    [
        *("Content-Length", "content-length", "Content_Length", "Content-Length ", "Host", "X"),
        *("Transfer-Encoding", "Connection", "Upgrade", "Expect", "Sec-WebSocket-Key1"),
    ]
)
values = st.sampled_from(
    [
        *("5", "0", "05", " 5", "5 ", "5,5", "+5", "7", "", "chunked", "gzip, chunked", "identity"),
        *("close", "keep-alive", "upgrade", "h2c", "websocket", "100-continue", "x"),
    ]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ends = st.sampled_from(["\r\n"] * 20 + ["\n", "\r", "\r\n ", "\r\n\t", "\n\n"])
firsts = st.builds(
    "{} {} HTTP/{}".format,
    st.sampled_from(["POST", "GET", "HEAD", "CONNECT", "PUT", "post", "X", "PRI", "OPTIONS"]),
    st.sampled_from(["/call", "*", "http://h/call", "h:80", "//h/call", "/a%2Fb", "http://h:x/"])
    | st.text(st.characters(min_codepoint=33, max_codepoint=255), min_size=1, max_size=6),
    st.sampled_from(["1.1"] * 10 + ["1.0", "2.0", "0.9", "1.2"]),
)
heads = st.builds(
    lambda first, lines, ends: (
        "".join(f"{line}{end}" for line, end in zip([first, *lines], ends, strict=False)).encode()
        + b"\r\n\r\n"
    ),
    firsts,
    st.lists(st.builds("{}: {}".format, names, values), max_size=4),
    st.lists(ends, min_size=5, max_size=5),
)


@given(heads)
@example(head("Content-Length: 5"))
@example(head("Upgrade: websocket", "Content-Length: 5"))
@example(head("Connection: upgrade", "Upgrade: websocket", "Content-Length: 5"))
@example(head("Connection: upgrade", "Upgrade: h2c", "Content-Length: 5"))
def test_a_request_ends_where_aiohttp_finds_its_end(data: bytes) -> None:
    """Or else the bytes behind it would be one request here and another one there."""
    end = data.find(b"\r\n\r\n") + 4
    asked = HeadCache(LOOP, RequestHead).of(data[:end])
    if asked is None or asked.declared > 1000:
        return
    parser = HttpRequestParser(BaseProtocol(LOOP), LOOP, 65_536, auto_decompress=False)
    body = b"b" * asked.declared
    try:
        # Of a piece in which an offer of another protocol ends, aiohttp loses the rest.
        first, _, tail = parser.feed_data(data[:end] + body)
        parser.set_upgraded(False)
        second, _, tail_behind = parser.feed_data(BEHIND)
    except HttpProcessingError:
        raise AssertionError(f"aiohttp refuses {data!r}") from None
    (message, payload), (behind, _) = *first, *second
    assert behind.url.path == "/behind"
    assert (tail, tail_behind) == (b"", b"")
    assert (message.method, message.url.raw_path) == (asked.method, asked.path)
    assert message.headers == asked.headers
    assert message.version == (1, 1)
    assert payload.is_eof()
    assert (payload.read_nowait() if asked.declared else b"") == body
