"""What callers send, and what is said of it to them, is in no log, however much is logged."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from batchedmodel_contract.inference.tensors import HEADER_LENGTH
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain, running_chain
from support.row_server import SHARING, RowServer, in_front

MARK: Final = "secret-of-a-caller"
LARGE: Final = 20_000
"""Times the mark: enough that the helper reads the body."""
EMBEDDINGS: Final = "/v1/embeddings"
V2: Final = "/v2/models/m/infer"
V1: Final = "/v1/models/m:predict"
TEXT: Final[dict[str, Any]] = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [MARK]}


def v2(**changed: Any) -> dict[str, Any]:
    return {"inputs": [TEXT | changed]}


GOOD: Final[list[tuple[str, dict[str, Any]]]] = [
    (EMBEDDINGS, {"model": "m", "input": MARK}),
    (EMBEDDINGS, {"model": "m", "input": [MARK, MARK * LARGE]}),
    (V2, v2()),
    (V2, v2() | {"id": MARK}),
]
BAD: Final[list[tuple[str, Any]]] = [
    (EMBEDDINGS, {"model": MARK, "input": "a"}),
    (EMBEDDINGS, {"model": "m", "input": {"a": MARK}}),
    (EMBEDDINGS, {"model": "m", "input": "a", "dimensions": MARK}),
    (EMBEDDINGS, {"model": "m", "input": [MARK * LARGE, {"a": MARK}]}),
    (V2, v2(data=[[{"a": MARK}]])),
    (V2, v2(name=MARK)),
    (V2, v2(datatype=MARK)),
    (V2, v2(shape=MARK)),
    (V2, v2() | {"parameters": {MARK: MARK}}),
    (V2, v2() | {"outputs": [{"name": MARK}]}),
    (V2, f'{{"inputs": {MARK}'),
    (V1, {"instances": [{"text": {"a": MARK}}]}),
    (f"/v2/models/{MARK}/infer", v2()),
]
RAW: Final = [
    f"{MARK} {MARK}\r\n\r\n",
    f"POST {V2} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n{MARK}\r\n",
    f"POST {V2} HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{MARK}",
]


async def ask(chain: Chain, path: str, document: Any, **headers: str) -> tuple[int, str]:
    data = document if isinstance(document, str) else json.dumps(document)
    async with chain.session.post(chain.url(path), data=data, headers=headers) as response:
        return response.status, await response.text()


async def send_raw(chain: Chain, text: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    writer.write(text.encode())
    writer.write_eof()
    await reader.read()
    writer.close()


async def assert_unsaid(chain: Chain) -> None:
    """Once both processes have ended, so that their logs are whole."""
    await chain.sidecar.stop()
    await chain.model.stop()
    lines = chain.sidecar.lines + chain.model.lines
    assert any(" DEBUG " in line for line in chain.sidecar.lines)
    assert [line for line in lines if MARK in line] == []


async def test_in_front_of_our_server(tmp_path: Path) -> None:
    handler = "support.text_handlers:Embedder"
    async with running_chain(tmp_path, handler=handler, log_level="debug") as chain:
        for path, document in GOOD:
            status, text = await ask(chain, path, document)
            assert status == 200, text
        quoted = 0
        for path, document in BAD:
            status, text = await ask(chain, path, document)
            assert status in (400, 404), text
            quoted += MARK in text
        assert quoted > len(BAD) / 2, "callers are told what was wrong, in their own words"
        for headers in ({"Content-Encoding": "gzip"}, {HEADER_LENGTH: "7"}):
            status, text = await ask(chain, V2, MARK, **headers)
            assert status == 400, text
        for raw in RAW:
            await send_raw(chain, raw)
        await assert_unsaid(chain)
        assert any("started a helper" in line for line in chain.sidecar.lines)


@pytest.mark.parametrize("protocol", [ServerProtocol.V1, ServerProtocol.V2])
async def test_in_front_of_a_server_that_quotes_what_it_refuses(
    tmp_path: Path, server: RowServer, protocol: ServerProtocol
) -> None:
    path, document = (
        (V1, {"instances": [MARK]})
        if protocol is ServerProtocol.V1
        else (V2, {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [MARK]}]})
    )
    async with in_front(server, tmp_path, protocol, settings=SHARING, log_level="debug") as chain:
        assert (await ask(chain, path, document))[0] == 200
        for status in (400, 401, 422, 429, 500, 502, 503):
            # A busy server is not rested from for long.
            server.failure = (status, {"Retry-After": "0"}, f'{{"error": "{MARK} is bad"}}')
            for said in await asyncio.gather(*[ask(chain, path, document) for _ in range(3)]):
                assert said[0] in (status, 503), said
        server.failure = None
        server.rows_off = 1
        await ask(chain, path, document)
        server.rows_off = 0
        for answer in ({"name": MARK}, {"datatype": MARK}, {"shape": [MARK]}, {"data": [MARK]}):
            quote(server, answer)
            for said in await asyncio.gather(*[ask(chain, path, document) for _ in range(3)]):
                assert said[0] in (200, 502), said
        server.breaks_off_at = MARK.encode()
        await ask(chain, path, document)
        await ask(chain, "/elsewhere", MARK)
        await ask(chain, path, f'{{"inputs": {MARK}')
        await assert_unsaid(chain)


def quote(server: RowServer, answer: dict[str, Any]) -> None:
    """Have it answer so in place of rows (v1), or say so of its output (v2)."""
    server.beside = lambda rows: {"predictions": answer}
    server.outputs = lambda outputs: outputs[0].update(answer)
