"""More rows than the queue ever holds are refused before one of them is made."""

import json
from typing import Any

import numpy as np
import pytest

from batchedmodel_contract.inference.tensors import BINARY_SIZE, HEADER_LENGTH
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.protocols.v2 import described
from batchedmodel_sidecar.errors import Rejected
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.protocol import PublicProtocol
from batchedmodel_sidecar.protocols.v1 import PredictProtocol
from batchedmodel_sidecar.protocols.v2 import V2Protocol
from support.sidecar_world import MODEL

UPSTREAM = ReadyModel(
    description=described("m", b"{}"), profile=None, tokens=None, depth=1, rows_pad=False
)
MOST = 50


def in_json(rows: int) -> tuple[bytes, str | None]:
    return json.dumps({"inputs": [_tensor(rows) | {"data": [1] * rows}]}).encode(), None


def in_bytes(rows: int) -> tuple[bytes, str | None]:
    head = json.dumps({"inputs": [_tensor(rows) | {"parameters": {BINARY_SIZE: rows}}]}).encode()
    return head + np.ones(rows, np.uint8).tobytes(), str(len(head))


def _tensor(rows: int) -> dict[str, Any]:
    return {"name": "x", "datatype": "UINT8", "shape": [rows, 1]}


def listed(field: str, value: Any, rows: int) -> tuple[bytes, str | None]:
    return json.dumps({"model": "m", field: [value] * rows}).encode(), None


def in_front_of(protocol: ServerProtocol) -> PublicProtocol:
    return Upstream(protocol, "m").public_protocol("/", "", {HEADER_LENGTH: ""})


@pytest.mark.parametrize(
    ("adapter", "body", "model"),
    [
        (V2Protocol(), in_json, MODEL),
        (V2Protocol(), in_bytes, MODEL),
        (PredictProtocol(), lambda rows: _instances([1], rows), MODEL),
        (in_front_of(ServerProtocol.V2), in_json, UPSTREAM),
        (in_front_of(ServerProtocol.V2), in_bytes, UPSTREAM),
        (in_front_of(ServerProtocol.V1), lambda rows: _instances([1], rows), UPSTREAM),
        (in_front_of(ServerProtocol.OPENAI), lambda rows: listed("input", "a", rows), UPSTREAM),
    ],
)
async def test_rows_beyond_the_queue_are_refused_before_they_are_made(
    adapter: PublicProtocol, body: Any, model: ReadyModel
) -> None:
    text, head = body(MOST)
    assert len((await adapter.parse(text, head, model, MOST)).call.rows) == MOST
    text, head = body(MOST + 1)
    with pytest.raises(Rejected, match=f"{MOST + 1} rows in one request") as refused:
        await adapter.parse(text, head, model, MOST)
    assert refused.value.reason is Rejection.TOO_LARGE


@pytest.mark.parametrize("shapes", [([3, 1], [5, 1]), ([5, 1], [3, 1]), ([99, 1], [3, 1])])
async def test_a_name_that_is_given_twice_with_other_rows_goes_alone(
    shapes: tuple[list[int], list[int]],
) -> None:
    twice = [_tensor(rows) | {"data": [1] * rows} for rows, _ in shapes]
    protocol = Upstream(ServerProtocol.V2, "m").protocol
    assert protocol.parse(json.dumps({"inputs": twice}).encode(), None, MOST) is None


async def test_a_tensor_whose_first_dimension_counts_no_rows_still_goes_alone() -> None:
    """Such as one that is longer than the queue, and of another rank than the model's input."""
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [99], "data": [1.0] * 99}]}
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]}
    protocol = Upstream(ServerProtocol.V2, "m").protocol

    async def ask(path: str) -> tuple[int, bytes]:
        return 200, json.dumps(metadata if "models" in path else {}).encode()

    await protocol.describe(ask)
    assert protocol.parse(json.dumps(document).encode(), None, MOST) is None


def _instances(value: Any, rows: int) -> tuple[bytes, str | None]:
    return json.dumps({"instances": [value] * rows}).encode(), None
