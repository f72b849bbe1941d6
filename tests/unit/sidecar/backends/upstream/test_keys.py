"""What must be equal in requests to an upstream server that share a batch."""

import json
import struct
from collections.abc import Hashable
from typing import Any

import pytest

from batchedmodel_contract.inference.tensors import BINARY_SIZE, HEADER_LENGTH
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.headers import forwarded
from batchedmodel_sidecar.backends.upstream.protocols.v2 import described
from batchedmodel_sidecar.model import ReadyModel

PATH = "/v2/models/m/infer"
MODEL = ReadyModel(
    description=described("m", b"{}"), profile=None, tokens=None, depth=1, rows_pad=False
)
ROW = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}


async def key(
    document: dict[str, Any] | bytes,
    *,
    path: str = PATH,
    query: str = "",
    headers: dict[str, str] | None = None,
) -> Hashable:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    given = headers or {}
    adapter = Upstream(ServerProtocol.V2, "m").public_protocol(path, query, given)
    parsed = await adapter.parse(body, given.get(HEADER_LENGTH), MODEL, 4096)
    return parsed.call.key_of(parsed.call.rows[0])


async def test_requests_that_differ_in_their_rows_alone_have_one_key() -> None:
    other = {"id": "mine", "inputs": [ROW | {"shape": [2, 1], "data": [2.0, 3.0]}]}
    assert await key({"inputs": [ROW]}) == await key(other)


async def test_bytes_and_text_have_one_key_where_the_server_reads_text() -> None:
    entry = {name: ROW[name] for name in ("name", "shape", "datatype")}
    head = json.dumps({"inputs": [entry | {"parameters": {BINARY_SIZE: 4}}]}).encode()
    binary = await key(head + struct.pack("<f", 1.0), headers={HEADER_LENGTH: str(len(head))})
    assert binary == await key({"inputs": [ROW]})


@pytest.mark.parametrize(
    ("document", "asked"),
    [
        ({"inputs": [ROW], "parameters": {"a": 1}}, {}),
        ({"inputs": [ROW], "parameters": {"a": "1"}}, {}),
        ({"inputs": [ROW], "b": None}, {}),
        ({"inputs": [ROW], "outputs": [{"name": "y"}]}, {}),
        ({"inputs": [ROW | {"data": [[1.0]]}]}, {}),
        ({"inputs": [ROW | {"parameters": {"a": 1}}]}, {}),
        ({"inputs": [ROW | {"shape": [1, 2], "data": [1, 2]}]}, {}),
        ({"inputs": [ROW | {"name": "z"}]}, {}),
        ({"inputs": [ROW]}, {"query": "?a=1"}),
        ({"inputs": [ROW]}, {"query": "?"}),
        ({"inputs": [ROW]}, {"path": "/v2/models/m/versions/1/infer"}),
        ({"inputs": [ROW]}, {"headers": {"authorization": "Bearer a"}}),
        ({"inputs": [ROW]}, {"headers": {"authorization": "caf\udce9"}}),
    ],
)
async def test_requests_that_differ_in_anything_else_have_others(
    document: dict[str, Any], asked: dict[str, Any]
) -> None:
    assert await key(document, **asked) != await key({"inputs": [ROW]})


async def test_a_key_is_small_whatever_it_stands_for() -> None:
    large = await key({"inputs": [ROW], "parameters": {"a": "x" * 1_000_000}})
    assert isinstance(large, bytes)
    assert len(large) == 32


def test_bytes_of_a_header_that_are_no_utf_8_reach_the_server() -> None:
    """A gateway that compares values must see what the server gets."""
    given = {"X-Tenant-Id": b"\xffalice".decode(errors="surrogateescape")}
    assert forwarded(given) == (("x-tenant-id", "\xffalice"),)
