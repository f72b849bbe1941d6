"""Large bodies in front of servers of somebody else's: what is read in the helper is what was said.

Numbers reach the server, and come back, as the text that they were.
"""

import asyncio
import json
import os
import signal
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain, in_front_of
from support.json_numbers import by_value
from support.large_bodies import LARGEST, MEBIBYTE, children_of, helper_of, numbers, v2_body
from support.row_server import SHARING, DataHandler, Fronts, RowServer, fronting

pytestmark = pytest.mark.asyncio(loop_scope="module")

V1: Final = "/v1/models/m:predict"
V2: Final = "/v2/models/m/infer"
OPENAI: Final = "/v1/embeddings"
PATHS: Final = {ServerProtocol.V1: V1, ServerProtocol.V2: V2, ServerProtocol.OPENAI: OPENAI}
FRONTS: Final = {protocol.value: {"protocol": protocol} for protocol in PATHS}
LENGTH: Final = "Inference-Header-Content-Length"
ODD: Final = ["1.10", "9007199254740993", "-0.0", "1e400", "0.30000000000000004"]
"""Numbers that hardly anybody writes as they came, once he has read them."""


async def without_helper(front: DataHandler, **changed: Any) -> Chain:
    """The sidecar, whose helper has ended if it had one, so that one that it needs is started."""
    for child in children_of(front.chain.sidecar.pid):
        os.kill(child, signal.SIGKILL)
    await front.chain.goes_by(SHARING)
    return await front.anew(**changed)


def started(chain: Chain) -> int:
    """How many helpers there have been."""
    return sum("started a helper" in line for line in chain.sidecar.lines)


async def post(url: str, chain: Chain, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Status and body of an answer."""
    # In pieces: the client warns of large bodies in one.
    async with chain.session.post(url, data=in_pieces(body), headers=headers) as response:
        return response.status, await response.read()


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), MEBIBYTE):
        yield body[start : start + MEBIBYTE]


def shown(answer: tuple[int, bytes]) -> tuple[int, Any]:
    """An answer by value."""
    return answer[0], by_value(answer[1])


def listed(count: int) -> str:
    """Numbers of which some are odd."""
    texts = list(map(str, numbers(count)))
    texts[: len(ODD)] = ODD
    return ",".join(texts)


def question(protocol: ServerProtocol, size: int = LARGEST) -> bytes:
    """A body with so many numbers in two rows."""
    half = listed(size // 2)
    match protocol:
        case ServerProtocol.V1:
            return f'{{"instances": [[{half}],[{half}]], "limit": 1.50}}'.encode()
        case ServerProtocol.V2:
            data = f'"shape":[2,{size // 2}],"datatype":"FP64","data":[[{half}],[{half}]]'
            return f'{{"id": "7", "inputs": [{{"name":"x",{data}}}]}}'.encode()
        case ServerProtocol.OPENAI:
            return f'{{"input": ["{half}","{half}"], "model": "m"}}'.encode()


@pytest.mark.parametrize("protocol", ServerProtocol)
async def test_a_body_of_thirteen_mebibytes_is_answered_as_by_the_server_itself(
    fronts: Fronts, protocol: ServerProtocol
) -> None:
    body = question(protocol)
    assert len(body) > 13 * MEBIBYTE - 1000
    chain = await without_helper(fronts[protocol])
    server = fronts[protocol].server
    before = started(chain)
    straight = shown(await post(server.url + PATHS[protocol], chain, body))
    status, answer = shown(await post(chain.url(PATHS[protocol]), chain, body))
    assert started(chain) == before + 1
    assert status == straight[0] == 200
    if protocol is ServerProtocol.V2:
        assert answer.pop("id") == "7", "the sidecar answers for the server, which has many callers"
    if protocol is ServerProtocol.OPENAI:
        straight[1]["data"].sort(key=lambda entry: entry["index"])
    assert answer == straight[1]
    given = by_value(body)
    sent = by_value(server.bodies[1])
    given.pop("id", None)
    assert sent == given


@pytest.mark.parametrize("protocol", [ServerProtocol.V1, ServerProtocol.V2])
async def test_large_and_small_rows_share_a_request_and_each_caller_has_its_own(
    fronts: Fronts, protocol: ServerProtocol
) -> None:
    chain = await without_helper(fronts[protocol])
    server = fronts[protocol].server
    bodies = {
        ServerProtocol.V1: [b'{"instances": [[1.0]]}', b'{"instances": [[%s]]}'],
        ServerProtocol.V2: [v2_body([1, 2]), v2_body(numbers(50_000))],
    }[protocol]
    # Two rows go at once, and one alone waits however slow the helper is.
    await chain.goes_by(replace(SHARING, max_batch_size=2, max_wait_seconds=10.0))
    texts = listed(50_000).encode()
    bodies = [body.replace(b"%s", texts) for body in bodies]
    await asyncio.gather(*(post(chain.url(PATHS[protocol]), chain, bodies[1]) for _ in "ab"))
    assert 2 in server.rows, "two large ones in one request"
    server.rows.clear()
    answers = await asyncio.gather(
        *(post(chain.url(PATHS[protocol]), chain, body) for body in bodies * 2)
    )
    straight = [shown(await post(server.url + PATHS[protocol], chain, b)) for b in bodies]
    assert [shown(answer) for answer in answers] == straight * 2
    assert sum(server.rows[:-2]) == 4


BROKEN: Final = {
    ServerProtocol.V1: (b'{"instances": [1, %s x', b'{"instances": [1], "instances": [%s]}'),
    ServerProtocol.V2: (b'{"inputs": [%s x', b'{"id": 7, "inputs": [%s]}'),
    ServerProtocol.OPENAI: (b'{"input": [%s}', b"[%s]"),
}


@pytest.mark.parametrize("protocol", ServerProtocol)
@pytest.mark.parametrize("index", [0, 1])
async def test_a_broken_body_is_refused_in_the_same_words_however_large_it_is(
    fronts: Fronts, protocol: ServerProtocol, index: int
) -> None:
    chain = await without_helper(fronts[protocol])
    server = fronts[protocol].server
    before = started(chain)
    url, broken = chain.url(PATHS[protocol]), BROKEN[protocol][index]
    # The space comes behind what is wrong, whose place is told.
    small = await post(url, chain, broken % b"1" + b" " * 10)
    assert started(chain) == before
    large = await post(url, chain, broken % b"1" + b" " * MEBIBYTE)
    assert started(chain) == before + 1
    assert small[0] == large[0] == 400
    assert large == small
    assert server.rows == []


async def test_a_large_body_without_rows_goes_alone_as_it_came(fronts: Fronts) -> None:
    body = b'{"inputs": [[' + listed(LARGEST // 8).encode() + b']], \t"more": 1}'
    chain = await without_helper(fronts[ServerProtocol.V1])
    server = fronts[ServerProtocol.V1].server
    assert (await post(chain.url(V1), chain, body))[0] == 200
    assert server.bodies == [body]


@pytest.mark.parametrize("protocol", [ServerProtocol.V1, ServerProtocol.V2])
async def test_a_large_answer_with_too_few_rows_is_nonsense_as_a_small_one_is(
    fronts: Fronts, protocol: ServerProtocol
) -> None:
    chain = await without_helper(fronts[protocol], rows_off=-1)
    before = started(chain)
    url = chain.url(PATHS[protocol])
    small, large = [await post(url, chain, question(protocol, n)) for n in (100, 100_000)]
    assert started(chain) == before + 1
    assert small[0] == large[0] == 502
    assert small[1].replace(b"50]", b"50000]") == large[1]


def chunked(response: web.Response) -> None:
    response.enable_chunked_encoding()


def compressed(response: web.Response) -> None:
    response.enable_compression(web.ContentCoding.gzip)


@pytest.mark.parametrize("sent", [chunked, compressed])
async def test_a_large_answer_of_unknown_length_is_read_in_the_helper_as_well(
    fronts: Fronts, sent: Any
) -> None:
    chain = await without_helper(fronts[ServerProtocol.OPENAI], finishes=sent)
    server = fronts[ServerProtocol.OPENAI].server
    before = started(chain)
    # A small question with a large answer.
    server.beside = lambda rows: {"padding": "p" * MEBIBYTE}
    status, answer = shown(await post(chain.url(OPENAI), chain, b'{"input": ["a"]}'))
    assert started(chain) == before + 1
    assert status == 200
    assert answer["padding"] == "p" * MEBIBYTE
    assert answer["data"][0]["embedding"][2] == "97.0"


async def test_a_refusal_without_end_is_told_in_words_of_ours_and_with_its_status(
    fronts: Fronts,
) -> None:
    chain = await without_helper(fronts[ServerProtocol.V1])
    server = fronts[ServerProtocol.V1].server
    for size, whole in ((256 * 1024, True), (256 * 1024 + 1, False), (20 * MEBIBYTE, False)):
        server.failure = (422, {}, "w" * size)
        status, answer = await post(chain.url(V1), chain, b'{"instances": [1]}')
        assert status == 422
        if whole:
            assert answer == b"w" * size
        else:
            told = json.loads(answer)["error"]
            assert told.startswith("the model refused this with more than 262144 bytes")
            assert told.endswith("www")
            assert len(told) < 1000
    server.failure = None
    assert (await post(chain.url(V1), chain, b'{"instances": [1]}'))[0] == 200


async def test_metadata_without_end_is_not_read_and_named(tmp_path: Path) -> None:
    async with (
        RowServer(about="w" * 2 * MEBIBYTE) as server,
        in_front_of(server.url, tmp_path, upstream_protocol=ServerProtocol.V2) as chain,
    ):
        await chain.sidecar.wait_for(
            "model not ready: the answer at /v2/models/m: is longer than 1048576 bytes"
        )


@pytest.mark.parametrize("protocol", [ServerProtocol.V1, ServerProtocol.OPENAI])
async def test_large_words_beside_the_rows_reach_each_caller_whose_rows_they_are_beside(
    fronts: Fronts, protocol: ServerProtocol
) -> None:
    words = "w" * MEBIBYTE
    body = {
        ServerProtocol.V1: b'{"instances": [1, 2]}',
        ServerProtocol.OPENAI: b'{"model": "m", "input": ["a", "b"]}',
    }[protocol]
    server = fronts[protocol].server
    chain = await without_helper(fronts[protocol])
    server.beside = lambda rows: {"words": words, "rows": 1.50}
    url = chain.url(PATHS[protocol])
    answers = await asyncio.gather(*(post(url, chain, body) for _ in "abc"))
    assert server.rows == [6]
    for status, answer in map(shown, answers):
        assert status == 200
        assert answer["words"] == words
        assert answer["rows"] == "1.5"


async def test_a_server_that_reads_json_is_asked_in_json_by_a_caller_who_sends_bytes(
    fronts: Fronts,
) -> None:
    chain = await without_helper(fronts[ServerProtocol.V2])
    server = fronts[ServerProtocol.V2].server
    before = started(chain)
    assert await values_by_bytes(chain) == numbers(100_000)
    assert started(chain) == before + 1
    assert b"100000000003" in server.bodies[0]


async def test_a_server_that_reads_bytes_is_asked_in_bytes_by_a_caller_who_sends_json(
    fronts: Fronts,
) -> None:
    chain = await without_helper(fronts[ServerProtocol.V2], binary=True)
    server = fronts[ServerProtocol.V2].server
    before = started(chain)
    body = v2_body(numbers(LARGEST))
    status, answer = await post(chain.url(V2), chain, body)
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == numbers(LARGEST)
    assert server.bodies[0].endswith(struct.pack("<q", numbers(LARGEST)[-1]))
    assert started(chain) == before + 1


async def test_bytes_for_a_server_that_reads_bytes_need_no_helper(fronts: Fronts) -> None:
    chain = await without_helper(fronts[ServerProtocol.V2], binary=True)
    before = started(chain)
    assert await values_by_bytes(chain) == numbers(100_000)
    assert started(chain) == before


async def values_by_bytes(chain: Chain) -> list[int]:
    """What a caller is answered who sends 100,000 numbers as bytes, and wants bytes."""
    data = struct.pack("<100000q", *numbers(100_000))
    entry: dict[str, Any] = {"name": "x", "datatype": "INT64", "shape": [2, 50_000]}
    entry["parameters"] = {"binary_data_size": len(data)}
    asked = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    head = json.dumps(asked).encode()
    url, length = chain.url(V2), {LENGTH: str(len(head))}
    async with chain.session.post(url, data=in_pieces(head + data), headers=length) as response:
        assert response.status == 200
        answer = (await response.read())[int(response.headers[LENGTH]) :]
    return list(struct.unpack("<100000q", answer))


async def test_an_answer_that_ends_two_helpers_costs_its_caller_that_and_the_server_nothing(
    tmp_path: Path,
) -> None:
    async with fronting(tmp_path, ServerProtocol.OPENAI) as (chain, server, _):
        server.beside = lambda rows: {"padding": [1] * LARGEST * 4}
        caller = asyncio.create_task(post(chain.url(OPENAI), chain, b'{"input": ["a"]}'))
        seen = 0
        for _ in range(2):
            helper = await helper_of(chain, after=seen)
            seen = len(chain.sidecar.lines)
            os.kill(helper, signal.SIGKILL)
        status, answer = await caller
        assert status == 503
        assert b"the process that works on large bodies ended" in answer
        server.beside = lambda rows: {}
        assert (await post(chain.url(OPENAI), chain, b'{"input": ["a"]}'))[0] == 200
        assert await chain.metric("batchedmodel_circuit_open") == 0
