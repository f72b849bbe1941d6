"""A server that speaks KServe's v1 behind the sidecar."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain
from support.json_numbers import by_value
from support.row_server import SHARING, RowServer, in_front

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/models/m:predict"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, row_server: RowServer
) -> AsyncIterator[Chain]:
    """One for all, which has learned nothing of the server when a test begins.

    It knows the server by name: with an address alone nobody keeps cookies.
    """
    url = f"http://localhost:{row_server.port}"
    async with in_front(url, tmp_path_factory.mktemp("v1"), ServerProtocol.V1) as chain:
        yield chain


@pytest_asyncio.fixture(loop_scope="module")
async def server(running: Chain, row_server: RowServer) -> RowServer:
    await running.goes_by(SHARING)
    await row_server.begins_anew(running, ServerProtocol.V1)
    return row_server


@pytest.fixture
def chain(running: Chain, server: RowServer) -> Chain:
    return running


async def post(
    chain: Chain, body: str, headers: dict[str, str] | None = None
) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers (in lower case) of an answer."""
    async with chain.session.post(
        chain.url(PATH), data=body.encode(), headers=headers or {}
    ) as response:
        given = {name.lower(): value for name, value in response.headers.items()}
        return response.status, await response.text(), given


def instances(*texts: str, beside: str = "") -> str:
    return f'{{"instances": [{", ".join(texts)}]{beside}}}'


async def test_instances_of_several_callers_share_a_request_and_none_is_changed(
    chain: Chain, server: RowServer
) -> None:
    texts = ["1", "1.0", "1.10", "9007199254740993", "1e400", "[1, [2.50]]", '{"a": -0.0}', "null"]
    answers = await asyncio.gather(*(post(chain, instances(text)) for text in texts))
    assert [status for status, _, _ in answers] == [200] * len(texts)
    shown = [json.loads(text)["predictions"][0]["got"] for _, text, _ in answers]
    assert shown == [by_value(text) for text in texts]
    assert sum(server.rows) == len(texts)
    assert len(server.rows) <= 2


async def test_only_requests_that_are_equal_but_for_their_rows_share_a_call(
    chain: Chain, server: RowServer
) -> None:
    bodies = [instances(str(i), beside=f', "limit": {i % 2}') for i in range(8)]
    answers = await asyncio.gather(*(post(chain, body) for body in bodies))
    for index, (_, text, _) in enumerate(answers):
        (prediction,) = json.loads(text)["predictions"]
        assert prediction == {"got": str(index), "with": {"limit": str(index % 2)}}
    assert len(server.rows) >= 2


async def test_callers_of_different_authority_never_share_a_call(
    chain: Chain, server: RowServer
) -> None:
    keys = [{"Authorization": f"Bearer {i % 2}"} for i in range(8)]
    await asyncio.gather(*(post(chain, instances("1"), key) for key in keys))
    seen = [request.headers["Authorization"] for request in server.requests]
    assert set(seen) == {"Bearer 0", "Bearer 1"}
    assert sum(server.rows) == 8


async def test_a_trace_goes_on_where_a_request_holds_one_caller_and_no_wrong_one_elsewhere(
    chain: Chain, server: RowServer
) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
    await post(chain, instances("1", "2"), trace)
    assert {name: server.requests[-1].headers.get(name) for name in trace} == trace
    await asyncio.gather(*(post(chain, instances("1"), trace) for _ in range(16)))
    passes = list(zip(server.rows, server.requests, strict=True))[1:]
    assert any(rows > 1 for rows, _ in passes)
    for rows, request in passes:
        assert ("traceparent" in request.headers) is (rows == 1)


async def test_one_poisoned_call_of_32_gets_its_own_error_and_the_rest_their_answers(
    chain: Chain, server: RowServer
) -> None:
    texts = [f'"row {i}"' for i in range(31)]
    texts.insert(11, '"poison"')
    answers = await asyncio.gather(*(post(chain, instances(text)) for text in texts))
    assert [status for status, _, _ in answers].count(200) == 31
    status, text, headers = answers[11]
    assert (status, json.loads(text)) == (422, {"error": "this is poison", "code": 7})
    assert headers["x-about"] == "poison"
    assert headers["x-request-outcome"] == "failed"
    for index, (_, text, _) in enumerate(answers):
        if index != 11:
            assert json.loads(text)["predictions"][0]["got"] == json.loads(texts[index])
    assert server.rows[0] == 32
    assert len(server.rows) <= 11


async def test_a_server_that_refuses_everything_is_asked_a_few_times_only(
    chain: Chain, server: RowServer
) -> None:
    server.failure = (500, {}, "broken")
    answers = await asyncio.gather(*(post(chain, instances(str(i))) for i in range(32)))
    assert {(status, text) for status, text, _ in answers} == {(500, "broken")}
    assert len(server.rows) <= 20


async def test_what_is_not_idempotent_is_sent_once(tmp_path: Path, server: RowServer) -> None:
    async with in_front(server, tmp_path, ServerProtocol.V1, idempotent=False) as chain:
        texts = ['"poison"', *(str(i) for i in range(7))]
        answers = await asyncio.gather(*(post(chain, instances(text)) for text in texts))
        assert {status for status, _, _ in answers} == {422}
        assert server.rows == [8]


@pytest.mark.parametrize("digits", [2, 400], ids=["short", "long"])
async def test_a_batch_that_the_servers_memory_does_not_hold_is_halved_and_later_ones_are_smaller(
    chain: Chain, server: RowServer, digits: int
) -> None:
    server.holds = 12
    rows = [instances(str(10 ** (digits - 1) + i)) for i in range(32)]
    answers = await asyncio.gather(*(post(chain, row) for row in rows))
    assert [status for status, _, _ in answers] == [200] * 32
    assert server.rows == [32, 16, 8, 8, 16, 8, 8]
    server.rows.clear()
    answers = await asyncio.gather(*(post(chain, row) for row in rows))
    assert [status for status, _, _ in answers] == [200] * 32
    assert server.rows == [8, 8, 8, 8]


async def test_a_busy_server_rests_for_as_long_as_it_asks_and_is_then_asked_again(
    chain: Chain, server: RowServer
) -> None:
    server.failure = (503, {"Retry-After": "1"}, "busy")
    loop = asyncio.get_running_loop()
    began = loop.time()
    calls = asyncio.gather(*(post(chain, instances(str(i))) for i in range(8)))
    await asyncio.sleep(0.5)
    server.failure = None
    assert {status for status, _, _ in await calls} == {200}
    assert server.rows == [8, 8]
    assert loop.time() - began > 1.0


async def test_a_server_that_stays_busy_is_believed_and_its_words_reach_everybody(
    chain: Chain, server: RowServer
) -> None:
    server.failure = (429, {"Retry-After": "1"}, "busy")
    answers = await asyncio.gather(*(post(chain, instances(str(i))) for i in range(8)))
    assert {(status, text) for status, text, _ in answers} == {(429, "busy")}
    assert {headers["retry-after"] for _, _, headers in answers} == {"1"}
    assert server.rows == [8, 8, 8, 8]


async def test_a_server_that_breaks_off_has_its_rows_sent_once_more_each_alone(
    chain: Chain, server: RowServer
) -> None:
    server.breaks_off_at = b"fatal"
    texts = ['"good"', '"fatal"', '"fine"']
    answers = await asyncio.gather(*(post(chain, instances(text)) for text in texts))
    assert [status for status, _, _ in answers] == [200, 502, 200]
    assert server.rows == [3, 1, 1, 1]


async def test_a_wrong_number_of_predictions_is_nobodys_answer(
    chain: Chain, server: RowServer
) -> None:
    server.rows_off = -1
    answers = await asyncio.gather(*(post(chain, instances(str(i))) for i in range(8)))
    assert {status for status, _, _ in answers} == {502}
    assert "has 0 entries for 1 instances" in answers[0][1]


async def test_a_lone_caller_gets_the_servers_headers_and_sharers_only_what_is_true_for_all(
    chain: Chain, server: RowServer
) -> None:
    server.headers = {"X-Model-Version": "7", "X-Request-Cost": "3", "Keep-Alive": "timeout=9"}
    _, _, headers = await post(chain, instances("1"))
    assert (headers["x-model-version"], headers["x-request-cost"]) == ("7", "3")
    assert "keep-alive" not in headers
    answers = await asyncio.gather(*(post(chain, instances(str(i))) for i in range(4)))
    for _, _, headers in answers:
        assert headers["x-model-version"] == "7"
        assert "x-request-cost" not in headers


async def test_a_cookie_for_one_caller_is_not_sent_for_the_next(
    chain: Chain, server: RowServer
) -> None:
    server.headers = {"Set-Cookie": "session=of-one"}
    _, _, headers = await post(chain, instances("1"))
    assert headers["set-cookie"] == "session=of-one"
    await post(chain, instances("1"))
    assert "Cookie" not in server.requests[1].headers
    # What the caller itself brings is forwarded.
    await post(chain, instances("1"), {"Cookie": "session=mine"})
    assert server.requests[2].headers["Cookie"] == "session=mine"


async def test_a_list_beside_the_predictions_is_no_other_callers_business(
    chain: Chain, server: RowServer
) -> None:
    server.beside = lambda rows: {"scores": [0.5] * rows, "version": "1"}
    answers = await asyncio.gather(*(post(chain, instances(str(i))) for i in range(4)))
    for status, text, _ in answers:
        assert status == 200
        assert json.loads(text)["scores"] == [0.5]
        assert json.loads(text)["version"] == "1"


async def test_a_body_without_instances_goes_alone_as_it_came(
    chain: Chain, server: RowServer
) -> None:
    body = '{"inputs":  [1.50, 2]}'
    status, text, _ = await post(chain, body)
    assert status == 200
    assert [one["got"] for one in json.loads(text)["predictions"]] == ["1.5", "2"]
    assert server.bodies == [body.encode()]


@pytest.mark.parametrize("body", ["", "[", '{"instances": [1,,2]}', '{"instances": [NULL]}'])
async def test_what_is_no_json_is_refused_here(chain: Chain, server: RowServer, body: str) -> None:
    status, text, _ = await post(chain, body)
    assert status == 400
    assert "JSON" in json.loads(text)["error"]
    assert server.rows == []


async def test_a_list_that_is_longer_than_a_batch_comes_back_in_its_order(
    chain: Chain, server: RowServer
) -> None:
    await chain.goes_by(BatchSettings(policy=PolicyName.GREEDY, max_batch_size=8))
    _, text, _ = await post(chain, instances(*(str(i) for i in range(50))))
    got = [one["got"] for one in json.loads(text)["predictions"]]
    assert got == [str(i) for i in range(50)]
    assert max(server.rows) == 8


async def test_other_methods_and_models_are_told_so(chain: Chain) -> None:
    async with chain.session.get(chain.url("/v1/models/m")) as response:
        assert (await response.json())["ready"] is True
    async with chain.session.post(chain.url("/v1/models/other:predict"), json={}) as response:
        assert response.status == 404


async def posted_elsewhere(chain: Chain, bodies: list[str], headers: dict[str, str]) -> list[int]:
    """The statuses of calls that come together from an address of their own."""
    connector = aiohttp.TCPConnector(limit=0, local_addr=("127.0.0.66", 0))
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def status(body: str) -> int:
            url = f"http://127.0.0.1:{chain.port}{PATH}"
            async with session.post(url, data=body.encode()) as response:
                return response.status

        return list(await asyncio.gather(*map(status, bodies)))


async def test_many_bad_calls_of_one_caller_spoil_no_other_of_their_batch(
    chain: Chain, server: RowServer
) -> None:
    bad = posted_elsewhere(chain, [instances('"poison"')] * 24, {})
    bad_ones = asyncio.create_task(bad)
    await asyncio.sleep(0.05)
    answers = await asyncio.gather(*(post(chain, instances(str(n))) for n in range(8)))
    assert [status for status, _, _ in answers] == [200] * 8
    assert await bad_ones == [422] * 24
    assert max(server.rows) > 24


async def test_a_giant_of_little_patience_makes_batches_no_smaller(
    chain: Chain, server: RowServer
) -> None:
    server.failure_of, server.seconds = (b"giant", (507, {}, "out of memory")), 0.15
    giant = posted_elsewhere(chain, [instances('"giant"')], {"x-request-timeout-ms": "200"})
    told = asyncio.create_task(giant)
    answers = await asyncio.gather(*(post(chain, instances(str(n))) for n in range(8)))
    assert [status for status, _, _ in answers] == [200] * 8
    assert await told == [504]
    assert max(server.rows) > 8
    server.rows.clear()
    await asyncio.gather(*(post(chain, instances(str(n))) for n in range(8)))
    assert max(server.rows) == 8
