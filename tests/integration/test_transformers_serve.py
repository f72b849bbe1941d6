"""`transformers serve` behind the sidecar: what waits here and streams through."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.books import assert_books_balance
from support.chain import Chain, in_front_of
from support.generated import CHAT, TEXT, Said, ask, request
from support.language_model_servers import transformers_serve

pytestmark = [
    pytest.mark.torch,
    # The first run installs what serves.
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]


class Both(NamedTuple):
    """A sidecar, and the server behind it."""

    chain: Chain
    url: str
    model: str

    async def through(self, path: str, document: object) -> Said:
        return await ask(self.chain.session, self.chain.url(""), path, document)

    async def straight(self, path: str, document: object) -> Said:
        return await ask(self.chain.session, self.url, path, document)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Both]:
    folder, model = tmp_path_factory.mktemp("sidecar"), tmp_path_factory.mktemp("tiny")
    settings = BatchSettings(max_concurrent_requests=4)
    protocol = ServerProtocol.OPENAI
    async with (
        transformers_serve(model) as url,
        in_front_of(url, folder, upstream_protocol=protocol, settings=settings) as chain,
    ):
        await chain.ready()
        yield Both(chain, url, str(model))
        await assert_books_balance(chain)


async def test_it_is_ready_though_it_has_no_list_of_models(both: Both) -> None:
    async with both.chain.session.get(f"{both.url}/v1/models") as response:
        assert response.status == 500
    assert (await both.chain.admin("/ready"))[0] == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_answers_are_those_that_the_server_gives_straight(
    both: Both, path: str, stream: bool
) -> None:
    asked = [request(both.model, path, f"words {i}", 8 + i, stream=stream) for i in range(8)]
    through = await asyncio.gather(*(both.through(path, one) for one in asked))
    straight = [await both.straight(path, one) for one in asked]
    assert through == straight
    assert {one.status for one in through} == {200}
    counts = [one.events[-1]["usage"]["completion_tokens"] for one in through]
    assert counts == [8 + i for i in range(8)]
    assert not stream or all(len(one.events) > 8 for one in through)


async def test_its_refusals_come_as_they_are(both: Both) -> None:
    for asked in (request("another", CHAT, "hello"), request(both.model, CHAT, "hello", pace=2)):
        through = await both.through(CHAT, asked)
        assert through == await both.straight(CHAT, asked)
        assert 400 <= through.status < 500


async def test_a_caller_that_leaves_ends_its_generation(both: Both) -> None:
    """It generates one text at a time, so the next would wait for the rest of a long one."""
    long = request(both.model, CHAT, "hello", 60_000, stream=True)
    async with both.chain.session.post(both.chain.url(CHAT), json=long) as response:
        await response.content.readany()
        response.close()
    async with asyncio.timeout(15.0):
        assert (await both.through(CHAT, request(both.model, CHAT, "next"))).status == 200
