"""Real processes with a tokenizer over which its library panics: callers hear of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.chain import Chain, running_chain

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SMALL, LONG = "good", "good " * 1000
LARGE = ["good " * 1000] * 60
"""So large that the process beside the sidecar's reads it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("hostile")
    async with running_chain(folder, handler="support.hostile_tokenizers:Hostile") as chain:
        yield chain


@pytest.mark.parametrize("given", [SMALL, LONG, LARGE], ids=["small", "long", "large"])
async def test_every_caller_is_told_and_the_sidecar_serves_on(chain: Chain, given: object) -> None:
    pid = chain.sidecar.pid
    async with asyncio.timeout(60):
        for _ in range(20):
            status, answer = await ask(chain, "/v1/embeddings", {"model": "m", "input": given})
            assert status == 500, answer
            assert "the model's tokenizer failed on the text: PanicException" in json.dumps(answer)
        # Whoever brings tokens needs no tokenizer.
        status, answer = await ask(chain, "/v1/embeddings", {"model": "m", "input": [3, 4]})
    assert status == 200, answer
    assert chain.sidecar.pid == pid
    if given is LARGE:
        await chain.sidecar.wait_for("started a helper for large bodies")
        assert not any("is lost" in line for line in chain.sidecar.lines)


async def ask(chain: Chain, path: str, document: object) -> tuple[int, object]:
    async with chain.session.post(chain.url(path), json=document) as response:
        return response.status, json.loads(await response.read())


async def test_file_that_cannot_be_read_leaves_the_pod_unready_with_the_reason(
    tmp_path: Path,
) -> None:
    handler = "support.hostile_tokenizers:Unreadable"
    async with running_chain(tmp_path, handler=handler, start_model=False) as chain:
        await chain.model.start()
        await chain.sidecar.wait_for("model not ready: tokenizer: cannot be read: PanicException")
        status, answer = await ask(chain, "/v1/embeddings", {"model": "m", "input": SMALL})
        assert status == 503
        assert "tokenizer: cannot be read: PanicException" in json.dumps(answer)


async def test_file_that_ends_whoever_reads_it_fails_the_model_and_ends_nobody(
    tmp_path: Path,
) -> None:
    handler = "support.hostile_tokenizers:Deadly"
    async with running_chain(tmp_path, handler=handler, start_model=False) as chain:
        await chain.model.start()
        reason = "tokenizer.json cannot be used: it ended the process that read it by SIGABRT"
        await chain.sidecar.wait_for(f"model not ready: the model is FAILED: .*{reason}")
        status, answer = await ask(chain, "/v1/embeddings", {"model": "m", "input": SMALL})
        assert status == 503
        assert reason in json.dumps(answer)
