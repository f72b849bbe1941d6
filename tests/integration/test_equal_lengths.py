"""A model that padding harms, behind a sidecar: its callers never meet each other's padding."""

import asyncio
import json
from pathlib import Path

import pytest

from support.chain import running_chain


async def test_callers_of_mixed_lengths_get_what_they_would_get_alone(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="support.model_server_handlers:Maskless") as chain:
        async with chain.session.get(chain.url("/v2/models/m")) as response:
            assert json.loads(await response.read())["batchedmodel"]["equalLengths"] is True

        async def mean(number: int) -> float:
            length = 1 + number % 5
            data = [float(number + place) for place in range(length)]
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, length], "data": data}
            async with chain.session.post(
                chain.url("/v2/models/m/infer"), json={"inputs": [tensor]}
            ) as response:
                document = json.loads(await response.read())
                assert response.status == 200, document
                answer: float = document["outputs"][0]["data"][0]
                return answer

        means = await asyncio.gather(*map(mean, range(100)))
        assert means == pytest.approx([n + (n % 5) / 2 for n in range(100)])
        # Equal lengths share batches all the same.
        passes = await chain.metric("batchedmodel_batch_size_count")
        assert passes < 100
