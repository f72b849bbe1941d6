"""Random requests say the same through the sidecar, in shared batches, as straight to the server.

The server's answer to a row depends on that row alone, so whatever differs the sidecar has done.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.spec import PolicyName, ServerProtocol
from batchedmodel_sidecar.upstream import json_text
from support.row_server import RowServer, in_front

SHARING = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.02, max_batch_size=16)
Said = tuple[int, str]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("poison")
numbers = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.sampled_from([2**53 + 1, 1.0, -0.0, 1e-45])
)
values = st.recursive(
    numbers | texts | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
spaces = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])
# Mostly alike, or nobody would share a request.
beside = st.sampled_from([{}, {}, {}, {"limit": 1.5}, {"user": "poison"}])
nonsense = st.sampled_from(["", "{", "[]", "3", '{"a": }', "\x00", '{"instances": 3}', "{}"])


@st.composite
def written(draw: st.DrawFn, documents: st.SearchStrategy[Any]) -> str:
    """A document as text, in one of many ways to write it."""
    return json.dumps(draw(documents), separators=draw(spaces), ensure_ascii=draw(st.booleans()))


v1_bodies = written(
    st.builds(
        lambda instances, more: {"instances": instances, **more},
        st.lists(values, min_size=1, max_size=5),
        beside,
    )
)
tokens = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)
openai_bodies = written(
    st.builds(
        lambda given, more: {"model": "m", "input": given, **more},
        texts | tokens | st.lists(texts, max_size=4) | st.lists(tokens, max_size=4) | numbers,
        st.sampled_from([{}, {}, {}, {"dimensions": 2}]),
    )
)
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32),
    "FP64": st.floats(),
    "FP16": st.floats(width=16),
    "BOOL": st.booleans(),
    "BYTES": texts,
}


@st.composite
def v2_documents(draw: st.DrawFn, datatype: str) -> dict[str, Any]:
    """One tensor, flat or nested, and now and then with a shape that is not its own."""
    rows, columns = draw(st.integers(0, 4)), draw(st.sampled_from([2, 2, 3]))
    elements = st.lists(ELEMENTS[datatype], min_size=columns, max_size=columns)
    nested = draw(st.lists(elements, min_size=rows, max_size=rows))
    flat = [element for row in nested for element in row]
    tensor: dict[str, Any] = {
        "name": "x",
        "datatype": datatype,
        "shape": [rows + draw(st.sampled_from([0] * 9 + [1])), columns],
        "data": draw(st.sampled_from([flat, flat, nested])),
    }
    if draw(st.integers(0, 3)) == 0:
        tensor["parameters"] = {"content_type": "np"}
    return {"inputs": [tensor], **draw(st.sampled_from([{}, {}, {"parameters": {"k": 1.50}}]))}


def requests(bodies: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Bodies that are sent at once."""
    return st.lists(bodies | nonsense, min_size=1, max_size=10)


v2_requests = st.sampled_from(sorted(ELEMENTS)).flatmap(
    lambda datatype: requests(written(v2_documents(datatype)))
)


def v1_parts(text: str) -> Any:
    """The text of each prediction, and all that is beside them."""
    document = json_text.fields(text)
    return json_text.elements(document.pop("predictions"), "predictions"), document


def openai_parts(text: str) -> Any:
    """The text of each vector in its place; usage is judged elsewhere."""
    document = json_text.fields(text)
    entries = [json_text.fields(one) for one in json_text.elements(document.pop("data"), "data")]
    document.pop("usage")
    return {entry["index"]: entry["embedding"] for entry in entries}, document


def v2_parts(text: str) -> Any:
    """All of it, a number being its text."""
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)


@pytest.mark.parametrize(
    ("protocol", "path", "drawing", "parts"),
    [
        (ServerProtocol.V1, "/v1/models/m:predict", requests(v1_bodies), v1_parts),
        (ServerProtocol.OPENAI, "/v1/embeddings", requests(openai_bodies), openai_parts),
        (ServerProtocol.V2, "/v2/models/m/infer", v2_requests, v2_parts),
    ],
    ids=["V1", "OpenAI", "V2"],
)
async def test_what_is_said_through_the_sidecar_is_what_is_said_straight(
    tmp_path: Path,
    server: RowServer,
    protocol: ServerProtocol,
    path: str,
    drawing: st.SearchStrategy[list[str]],
    parts: Callable[[str], Any],
) -> None:
    async with in_front(server, tmp_path, protocol, SHARING) as chain:
        loop = asyncio.get_running_loop()

        async def said(base: str, body: str) -> Said:
            async with chain.session.post(base + path, data=body.encode()) as response:
                return response.status, await response.text()

        shared = 0

        async def compare(drawn: list[str]) -> None:
            nonlocal shared
            server.rows.clear()
            through = await asyncio.gather(*(said(chain.url(""), body) for body in drawn))
            most = max(server.rows, default=0)
            server.rows.clear()
            straight = [await said(server.url, body) for body in drawn]
            shared += most > max(server.rows, default=0)
            for body, one, other in zip(drawn, through, straight, strict=True):
                assert one[0] == other[0], (body, one, other)
                if one[0] == 200:
                    assert parts(one[1]) == parts(other[1]), body
                elif one[0] != 400:
                    assert one[1] == other[1], body

        @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(drawing)
        def same(drawn: list[str]) -> None:
            asyncio.run_coroutine_threadsafe(compare(drawn), loop).result()

        await asyncio.to_thread(same)
        # A request held more rows than any caller sent, or nothing was tried.
        assert shared > 0
