"""Bodies of v2 requests, every tensor as binary data."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from batchedmodel_contract.inference.tensors import Tensor


def binary_body(
    tensors: Sequence[Tensor], head: Mapping[str, Any] | None = None
) -> tuple[int, bytes]:
    """The length of the JSON and the body, its binary data on a multiple of eight bytes."""
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape,
            "parameters": {"binary_data_size": len(one.data)},
        }
        for one in tensors
    ]
    text = orjson.dumps({**(head or {}), "inputs": inputs})
    text += b" " * (-len(text) % 8)
    return len(text), b"".join([text, *(one.data for one in tensors)])
