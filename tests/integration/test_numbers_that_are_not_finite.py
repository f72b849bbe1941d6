"""NaN and infinity through both processes, as docs/protocols.md has them: one rule in every form.

The page said that they travel unchanged in binary, and that such an answer is 400 in JSON. Our
model server has always refused the first and failed the second, for that row alone.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from batchedmodel_contract.inference.tensors import HEADER_LENGTH, Datatype, Tensor
from support.chain import Chain, running_chain
from support.v2_bodies import binary_body

NUMBERS = np.array([[1, 2]], "<i8")


async def asked(chain: Chain, scale: float, *, binary: bool) -> tuple[int, str]:
    """The answer to a row whose value is three times the scale: in binary, or in JSON."""
    scales, kinds = np.array([scale], "<f4"), np.array([1], "<i8")
    given = [("x", Datatype.INT64, NUMBERS), ("scale", Datatype.FP32, scales)]
    given.append(("kind", Datatype.INT64, kinds))
    tensors = [Tensor(name, datatype, one.shape, one.tobytes()) for name, datatype, one in given]
    head: dict[str, Any] = {"parameters": {"binary_data_output": binary}}
    length, sent = binary_body(tensors, head)
    headers = {HEADER_LENGTH: str(length)}
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, data=sent, headers=headers) as response:
        body = await response.read()
        return response.status, "" if response.status == 200 else orjson.loads(body)["error"]


async def test_what_is_not_finite_fails_its_own_row_alike_in_binary_and_in_json(
    tmp_path: Path,
) -> None:
    async with running_chain(tmp_path, handler="support.scalar_handlers:Padded") as chain:
        for binary in (True, False):
            scales = (float("nan"), 1.5, float("-inf"), 3e38, 2.5)
            answers = await asyncio.gather(*(asked(chain, one, binary=binary) for one in scales))
            assert answers == [
                (400, "scale[0]: NaN is not a finite number"),
                (200, ""),
                (400, "scale[0]: -Infinity is not a finite number"),
                (500, "value: the model's answer is not a finite number"),
                (200, ""),
            ]
