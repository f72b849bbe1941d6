"""Parameters of requests through both processes: each row is answered by its own caller's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from support.chain import Chain, running_chain

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("scaled")
    settings = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.3)
    handler = "support.model_server_handlers:Scaled"
    async with running_chain(folder, handler=handler, settings=settings) as running:
        yield running


async def ask(chain: Chain, path: str, document: Any) -> tuple[int, int, Any]:
    """Status, the size of the batch it was in, and the answer."""
    headers = {"x-timing": "on"}
    async with chain.session.post(chain.url(path), json=document, headers=headers) as response:
        size = int(response.headers.get("x-batch-size", 0))
        return response.status, size, await response.json()


async def scaled(chain: Chain, numbers: list[list[float]], **parameters: Any) -> tuple[int, Any]:
    """Rows of equal length by v2; the size of their batch and they, or the status and why."""
    shape = [len(numbers), len(numbers[0])]
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "data": numbers}
    document = {"inputs": [entry], "parameters": parameters}
    status, size, answer = await ask(chain, chain.infer_path, document)
    if status != 200:
        return status, answer["error"]
    y, width = answer["outputs"][0]["data"], shape[1]
    return size, [y[start : start + width] for start in range(0, len(y), width)]


async def test_callers_with_different_parameters_share_a_pass(chain: Chain) -> None:
    answers = await asyncio.gather(
        scaled(chain, [[1, 2], [3, 4]], scale=2),
        scaled(chain, [[1.5, 2.5, 3.5]], rounding="down", timeout=5_000_000),
        scaled(chain, [[1]]),
        scaled(chain, [[1]], negate=True, shift=3),
        ask(
            chain,
            "/v1/models/m:predict",
            {"instances": [[1.25], [2.5, 3.5]], "parameters": {"rounding": "up"}},
        ),
    )
    assert answers[0] == (7, [[2, 4], [6, 8]])
    assert answers[1] == (7, [[1, 2, 3]])
    assert answers[2] == (7, [[1]])
    assert answers[3] == (7, [[-4]])
    assert answers[4] == (200, 7, {"predictions": [[2], [3, 4]]})


async def test_a_wrong_parameter_is_refused_and_hurts_nobody(chain: Chain) -> None:
    answers = await asyncio.gather(
        scaled(chain, [[1]], scale=2),
        scaled(chain, [[1]], scale=20),
        scaled(chain, [[1]], speed=1),
        scaled(chain, [[1]], scale=3),
    )
    assert answers[0] == (2, [[2]])
    assert answers[1] == (400, "parameters.scale: 20 is not a number from -10 to 10")
    known = "binary_data_output, negate, priority, rounding, scale, shift, timeout"
    rule = "is not a parameter that is taken here"
    assert answers[2] == (400, f'parameters: "speed" {rule}; known: {known}')
    assert answers[3] == (2, [[3]])


async def test_they_come_with_large_bodies_too(chain: Chain) -> None:
    numbers = [[1e6 + column for column in range(100)] for _ in range(300)]
    _, rows = await scaled(chain, numbers, scale=-1, shift=5)
    assert rows == [[5 - number for number in row] for row in numbers]


async def test_callers_are_told_of_them(chain: Chain) -> None:
    async with chain.session.get(chain.url("/v2/models/m")) as response:
        told = (await response.json())["batchedmodel"]["parameters"]
    assert set(told) == {"scale", "shift", "negate", "rounding"}
    assert told["rounding"]["default"] == "none"
    assert told["rounding"]["choices"] == ["none", "down", "up"]
