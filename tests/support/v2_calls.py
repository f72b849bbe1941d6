"""Calls of a v2 server through a sidecar, as text, and what was answered."""

import json
from typing import Any, Final

from support.chain import Chain
from support.json_numbers import by_value

LENGTH: Final = "Inference-Header-Content-Length"


def tensor(datatype: str, shape: list[int], data: str, **beside: Any) -> str:
    rest = "".join(f', "{name}": {json.dumps(value)}' for name, value in beside.items())
    return f'{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}{rest}}}'


async def infer(
    chain: Chain, tensor: str, beside: str = "", version: str | None = None
) -> tuple[int, str]:
    path = chain.infer_path if version is None else f"/v2/models/m/versions/{version}/infer"
    body = f'{{"inputs": [{tensor}]{beside}}}'
    async with chain.session.post(chain.url(path), data=body.encode()) as response:
        return response.status, await response.text()


def output(answer: tuple[int, str]) -> dict[str, Any]:
    """The only output, its numbers as texts."""
    status, text = answer
    assert status == 200, text
    document = by_value(text)
    (found,) = document["outputs"]
    return dict(found)


async def told(chain: Chain, url: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """The head of an answer, and the bytes behind it."""
    async with chain.session.post(url, data=body) as response:
        text = await response.read()
        assert response.status == 200, text
        end = int(response.headers.get(LENGTH, len(text)))
        return json.loads(text[:end]), text[end:]
