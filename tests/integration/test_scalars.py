"""Inputs and outputs without dimensions through the data port, in every way that rows share a pass.

Such an input could not be padded: a bad item in a batch failed its good neighbours with a 502, and
beside an input with a lettered size the model did not start.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from batchedmodel_contract.inference.tensors import HEADER_LENGTH, Datatype, Tensor
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_sidecar.protocols.v2 import read_body
from support.chain import Chain, running_chain
from support.scalar_handlers import KINDS, POISON, answer
from support.v2_bodies import binary_body

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.2, max_batch_size=8)
WAYS = {"Scalars": "padded", "Padded": "padded", "Packed": "packed", "Apart": "equal length only"}
"""The handlers, and how their rows share a pass."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS)
async def chain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Chain]:
    handler = f"support.scalar_handlers:{request.param}"
    folder = tmp_path_factory.mktemp(request.param)
    async with running_chain(folder, handler=handler, settings=SETTINGS) as running:
        way = WAYS[request.param]
        assert any(f"items share a forward pass: {way};" in line for line in running.model.lines)
        yield running


class Item:
    """One row; the model without lists takes none."""

    def __init__(self, number: int, chain: Chain) -> None:
        self.scale = number + 0.5
        self.kind = number % 3
        has_list = not any("Scalars" in line for line in chain.model.lines)
        self.x = list(range(1, 2 + number * 7 % 5)) if has_list else None

    @property
    def tensors(self) -> dict[str, Any]:
        return {
            "scale": np.array([self.scale], np.float32),
            "kind": np.array([self.kind]),
            **({} if self.x is None else {"x": np.array([self.x])}),
        }

    def assert_answered(self, found: dict[str, Any]) -> None:
        value, kind = answer(self.scale, self.kind, self.x)
        expected = {"value": value, "kind": kind, **({} if self.x is None else {"y": self.x})}
        assert found == expected


DATATYPES = {"f": Datatype.FP32, "i": Datatype.INT64}


async def by_json(chain: Chain, item: Item) -> tuple[int, Any]:
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES[one.dtype.kind],
            "shape": one.shape,
            "data": one.tolist(),
        }
        for name, one in item.tensors.items()
    ]
    async with chain.session.post(chain.url(chain.infer_path), json={"inputs": inputs}) as response:
        told = await response.json()
    if response.status != 200:
        return response.status, told["error"]
    for one in told["outputs"]:
        assert one["shape"] == ([1, len(one["data"])] if one["name"] == "y" else [1])
    return 200, {
        one["name"]: one["data"] if one["name"] == "y" else one["data"][0]
        for one in told["outputs"]
    }


async def test_rows_of_any_company_get_their_own_answers(chain: Chain) -> None:
    items = [Item(number, chain) for number in range(8)]
    for _ in range(2):
        answers = await asyncio.gather(*(by_json(chain, item) for item in items))
        for item, (status, found) in zip(items, answers, strict=True):
            assert status == 200, found
            item.assert_answered(found)
    status, found = await by_json(chain, items[3])
    items[3].assert_answered(found)


@pytest.mark.parametrize(
    ("wrong", "status", "message"),
    [
        pytest.param(
            {"kind": KINDS}, 400, f"kind[0]: {KINDS} is not within 0 to {KINDS - 1}", id="invalid"
        ),
        pytest.param({"scale": POISON}, 500, "poison", id="fails the pass"),
    ],
)
async def test_a_bad_item_fails_alone(
    chain: Chain, wrong: dict[str, Any], status: int, message: str
) -> None:
    items = [Item(number, chain) for number in range(7)]
    vars(items[2]).update(wrong)
    answers = await asyncio.gather(*(by_json(chain, item) for item in items))
    for item, (found_status, found) in zip(items, answers, strict=True):
        if item is items[2]:
            assert found_status == status
            assert message in found
        else:
            assert found_status == 200, found
            item.assert_answered(found)


async def test_binary_rows_get_binary_answers_and_what_is_no_number_fails_alone(
    chain: Chain,
) -> None:
    items = [Item(number, chain) for number in range(5)]
    items[1].scale = math.nan
    answers = await asyncio.gather(*(in_binary(chain, item) for item in items))
    for item, (status, found) in zip(items, answers, strict=True):
        if item is items[1]:
            assert (status, found) == (400, "scale[0]: NaN is not a finite number")
        else:
            assert status == 200, found
            item.assert_answered(found)


async def in_binary(chain: Chain, item: Item) -> tuple[int, Any]:
    tensors = [
        Tensor(name=name, datatype=DATATYPES[one.dtype.kind], shape=one.shape, data=one.tobytes())
        for name, one in item.tensors.items()
    ]
    head = {"parameters": {"binary_data_output": True}}
    length, sent = binary_body(tensors, head)
    headers = {HEADER_LENGTH: str(length)}
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, data=sent, headers=headers) as response:
        body = await response.read()
        if response.status != 200:
            return response.status, json.loads(body)["error"]
        _, found = read_body(body, response.headers[HEADER_LENGTH], "outputs")
    told: dict[str, Any] = {}
    for one in found:
        values = np.frombuffer(one.data, np.float32 if one.datatype is Datatype.FP32 else np.int64)
        assert one.shape == ((1, len(values)) if one.name == "y" else (1,))
        told[one.name] = values.tolist() if one.name == "y" else values[0].item()
    return 200, told


async def test_the_rows_of_one_request_have_one_number_each(chain: Chain) -> None:
    items = [Item(number, chain) for number in (2, 7)]  # of one length
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES[first.dtype.kind],
            "shape": [2, *first.shape[1:]],
            "data": np.concatenate([item.tensors[name] for item in items]).tolist(),
        }
        for name, first in items[0].tensors.items()
    ]
    async with chain.session.post(chain.url(chain.infer_path), json={"inputs": inputs}) as response:
        told = await response.json()
        assert response.status == 200, told
    columns = {one["name"]: one for one in told["outputs"]}
    assert columns["value"]["shape"] == columns["kind"]["shape"] == [2]
    for row, item in enumerate(items):
        value, kind = answer(item.scale, item.kind, item.x)
        assert (columns["value"]["data"][row], columns["kind"]["data"][row]) == (value, kind)


async def test_instances_have_plain_numbers_and_predictions_too(chain: Chain) -> None:
    items = [Item(number, chain) for number in range(4)]
    instances = [{name: one[0].tolist() for name, one in item.tensors.items()} for item in items]
    url = chain.url("/v1/models/m:predict")
    async with chain.session.post(url, json={"instances": instances}) as response:
        told = await response.json()
        assert response.status == 200, told
    for item, found in zip(items, told["predictions"], strict=True):
        item.assert_answered(found)
