"""Streamed texts beside images and large JSON at the same model server: gaps, cancels, liveness.

Called by `paired`. Two callers send rows of 600 kB and one sends JSON of 13 MiB, all in a closed
loop over the same data port, while texts stream.
"""

import asyncio
import http.client
import json
import re
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from batchedmodel_contract.processes import sidecar_metrics as names

LIVE: Final = "slowest /live"
TEXTS: Final = 8
_TOKENS: Final = 60
_LONG_TOKENS: Final = 2000
_CANCELS: Final = 12
_ROW_VALUES: Final = 75_000  # 600 kB of int64
_JSON_ROWS: Final = 24
_LIVE_EVERY_SECONDS: Final = 0.05
_GIVE_UP_SECONDS: Final = 60.0
_EVENT: Final = b'data: {"id"'
_INFER: Final = "/v2/models/m/infer"


def mixed(chain: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Seconds of each; `chain` has the ports of a sidecar, `port` and `admin`."""
    stop = threading.Event()
    images = [0]
    image, image_header = _image()
    loads = [
        threading.Thread(target=_ask, args=(chain["port"], body, headers, stop, answered))
        for body, headers, answered in [
            (image, image_header, images),
            (image, image_header, images),
            (_json(), {"Content-Type": "application/json"}, [0]),
        ]
    ]
    for one in loads:
        one.start()
    began = time.monotonic()
    try:
        found = asyncio.run(_measured(chain, seconds))
        return found | {"images a second": images[0] / (time.monotonic() - began)}
    finally:
        stop.set()
        for one in loads:
            one.join()


async def _measured(chain: Mapping[str, int], seconds: float) -> dict[str, float]:
    gaps: list[float] = []
    lives: list[float] = []
    until = time.monotonic() + seconds
    liveness = asyncio.create_task(_liveness(chain["admin"], lives))
    async with asyncio.timeout(_GIVE_UP_SECONDS + seconds):
        await asyncio.gather(*[_stream(chain["port"], until, gaps) for _ in range(TEXTS)])
        frees = [await _freed(chain) for _ in range(_CANCELS)]
    liveness.cancel()
    gaps.sort()
    return {
        "between tokens p99": gaps[int(0.99 * len(gaps))],
        "from cancel to free, median": sorted(frees)[len(frees) // 2],
        LIVE: max(lives),
    }


def _image() -> tuple[bytes, dict[str, str]]:
    size = 8 * _ROW_VALUES
    entry: dict[str, object] = {"name": "x", "datatype": "INT64", "shape": [1, _ROW_VALUES]}
    entry["parameters"] = {"binary_data_size": size}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    head = json.dumps(document).encode()
    return head + bytes(size), {"Inference-Header-Content-Length": str(len(head))}


def _json() -> bytes:
    """13 MiB: rows of numbers with six digits."""
    shape = [_JSON_ROWS, _ROW_VALUES]
    row = ",".join(str(100_000 + value) for value in range(_ROW_VALUES))
    data = ",".join([row] * _JSON_ROWS)
    entry = f'{{"name":"x","datatype":"INT64","shape":{shape},"data":[{data}]}}'
    return f'{{"inputs":[{entry}]}}'.encode()


def _ask(
    port: int,
    body: bytes,
    headers: dict[str, str],
    stop: threading.Event,
    answered: list[int],
) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_GIVE_UP_SECONDS)) as one:
        while not stop.is_set():
            one.request("POST", _INFER, body, headers)
            response = one.getresponse()
            response.read()
            if response.status != 200:
                raise RuntimeError(f"{response.status} for a body of {len(body)} bytes")
            answered[0] += 1


async def _opened(port: int, tokens: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    document = {"model": "m", "prompt": "w w w", "max_tokens": tokens, "temperature": 0}
    body = json.dumps(document | {"stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    return reader, writer


async def _stream(port: int, until: float, gaps: list[float]) -> None:
    while time.monotonic() < until:
        reader, writer = await _opened(port, _TOKENS)
        last, tokens = 0.0, 0
        while piece := await reader.read(65536):
            now = time.monotonic()
            if came := piece.count(_EVENT):
                if last:
                    gaps.append(now - last)
                last, tokens = now, tokens + came
        writer.close()
        if tokens < _TOKENS:
            raise RuntimeError(f"a text of {tokens} tokens in place of {_TOKENS}")


async def _freed(chain: Mapping[str, int]) -> float:
    """Seconds from a caller's leaving until no text runs at the engine."""
    reader, writer = await _opened(chain["port"], _LONG_TOKENS)
    tokens = 0
    while tokens < 3:
        tokens += (await reader.read(65536)).count(_EVENT)
    writer.transport.abort()
    began = time.monotonic()
    sample = re.compile(rb"^" + names.GENERATION_RUNNING.encode() + rb"(?:\{.*\})? (\S+)$", re.M)
    while True:
        found = sample.search(await _get(chain["admin"], "/metrics"))
        if found and float(found[1]) == 0:
            return time.monotonic() - began
        await asyncio.sleep(0.001)


async def _liveness(port: int, seconds: list[float]) -> None:
    while True:
        began = time.monotonic()
        if b" 200 " not in (await _get(port, "/live"))[:16]:
            raise RuntimeError("/live failed")
        seconds.append(time.monotonic() - began)
        await asyncio.sleep(_LIVE_EVERY_SECONDS)


async def _get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    return data
