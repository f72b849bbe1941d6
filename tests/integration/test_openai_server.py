"""A server of OpenAI embeddings behind the sidecar."""

import asyncio
import json
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain
from support.row_server import Fronts, RowServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/embeddings"
FRONTS = {"usual": {"protocol": ServerProtocol.OPENAI}}


@pytest_asyncio.fixture(loop_scope="module")
async def chain(fronts: Fronts) -> Chain:
    return await fronts["usual"].anew()


@pytest.fixture
def server(chain: Chain, fronts: Fronts) -> RowServer:
    return fronts["usual"].server


async def embedded(chain: Chain, given: Any, **beside: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "their-name", "input": given, **beside}
    async with chain.session.post(chain.url(PATH), json=body) as response:
        return response.status, await response.json()


def embedding(text: str) -> list[float]:
    seed = sum(map(ord, text))
    return [seed / 7, -seed / 1e7, float(seed)]


async def test_inputs_of_several_callers_share_a_request_and_come_back_in_their_order(
    chain: Chain, server: RowServer
) -> None:
    calls = [[f"text {i}", f"other {i}"] for i in range(8)]
    answers = await asyncio.gather(*(embedded(chain, call) for call in calls))
    for call, (status, document) in zip(calls, answers, strict=True):
        assert status == 200
        assert [entry["index"] for entry in document["data"]] == [0, 1]
        assert [entry["embedding"] for entry in document["data"]] == [embedding(t) for t in call]
        assert document["model"] == "their-name"
    assert sum(server.rows) == 16
    assert len(server.rows) <= 2


async def test_the_usage_of_sharers_adds_up_and_that_of_a_lone_caller_is_the_servers(
    chain: Chain,
) -> None:
    texts = ["a", "b" * 40, "c" * 400]
    answers = await asyncio.gather(*(embedded(chain, text) for text in texts))
    shares = [document["usage"]["total_tokens"] for _, document in answers]
    assert sum(shares) == 441
    assert shares == sorted(shares)
    _, document = await embedded(chain, "d" * 17)
    assert document["usage"] == {"prompt_tokens": 17, "total_tokens": 17}


async def test_strings_and_token_ids_are_answered_alike_but_do_not_share_a_request(
    chain: Chain, server: RowServer
) -> None:
    forms = ["ab", ["ab"], [97, 98], [[97, 98]], [[97], [98]]]
    answers = await asyncio.gather(*(embedded(chain, form) for form in forms))
    assert [status for status, _ in answers] == [200] * len(forms)
    assert [len(document["data"]) for _, document in answers] == [1, 1, 1, 1, 2]
    for _, document in answers[:4]:
        assert document["data"][0]["embedding"] == embedding("ab")
    assert sorted(server.rows) == [2, 4]


async def test_whatever_else_the_body_says_is_a_part_of_the_key(
    chain: Chain, server: RowServer
) -> None:
    wishes: list[dict[str, Any]] = [
        {"dimensions": 3},
        {"dimensions": 4},
        {"encoding_format": "base64"},
        {},
    ]
    await asyncio.gather(*(embedded(chain, "a", **wish) for wish in wishes * 2))
    assert sorted(server.rows) == [2, 2, 2, 2]
    sent = [json.loads(body) for body in server.bodies]
    for wish in wishes:
        assert {"model": "their-name", "input": ["a", "a"], **wish} in sent


async def test_one_poisoned_input_hurts_its_own_caller_only(
    chain: Chain, server: RowServer
) -> None:
    texts = ["fine", "poison", "also fine", "good"]
    answers = await asyncio.gather(*(embedded(chain, text) for text in texts))
    assert [status for status, _ in answers] == [200, 422, 200, 200]
    assert answers[1][1] == {"error": "this is poison", "code": 7}


async def test_the_servers_own_words_for_an_unknown_model_pass_through(
    chain: Chain, server: RowServer
) -> None:
    said = '{"error": {"message": "The model `x` does not exist", "code": "model_not_found"}}'
    server.failure = (404, {"Content-Type": "application/json; charset=utf-8"}, said)
    answers = await asyncio.gather(*(embedded(chain, "a") for _ in range(4)))
    assert [answer for answer in answers if answer != (404, json.loads(said))] == []
    assert server.rows == [4]


@pytest.mark.parametrize("given", [[], None, 3, [1, "a"], {}])
async def test_an_input_of_no_known_form_goes_alone_and_gets_the_servers_answer(
    chain: Chain, server: RowServer, given: Any
) -> None:
    server.failure = (400, {}, '{"error": "theirs"}')
    body = json.dumps({"model": "m", "input": given}).encode()
    async with chain.session.post(chain.url(PATH), data=body) as response:
        assert response.status == 400
        assert await response.text() == '{"error": "theirs"}'


async def test_an_entry_without_its_index_is_nobodys_answer(
    chain: Chain, server: RowServer
) -> None:
    server.beside = lambda rows: {"data": [{"embedding": [1.0]}] * rows}
    status, document = await embedded(chain, "a")
    assert status == 502
    assert "index" in document["error"]["message"]
