"""Random requests say the same through the sidecar, in shared batches, as straight to the server.

The server's answer to a row depends on that row alone, so whatever differs the sidecar has done.
What may differ: spaces and the order of members around the values, which are put together anew; how
OpenAI's usage is divided among those who shared a request; and the words in which the sidecar
itself refuses what it cannot read, for it has to read what it cuts into rows.
"""

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.tensors import HEADER_LENGTH
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.json_numbers import by_value
from support.row_server import Fronts

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARING = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.02, max_batch_size=16)
FRONTS: Final = {
    protocol.value: {"protocol": protocol, "settings": SHARING} for protocol in ServerProtocol
}
EXAMPLES: Final = 100
OF_THE_SERVER: Final = {"x-about": "rows", "model-version": "7", "Set-Cookie": "a=b"}
WRITTEN_ANEW: Final = frozenset(
    {"content-length", "content-type", "date", "server", HEADER_LENGTH.lower()}
)
"""Headers that are about the body's form and about who sent it."""
OUTCOME: Final = "x-request-outcome"


@dataclass(frozen=True)
class Sent:
    """A request's body."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def own(self) -> bool:
        """Whether the sidecar refused the request by itself."""
        return self.headers.get(OUTCOME) == "invalid"

    @property
    def of_the_server(self) -> dict[str, str]:
        """The headers that are the server's to say."""
        names = WRITTEN_ANEW | {OUTCOME}
        return {n.lower(): v for n, v in self.headers.items() if n.lower() not in names}


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


@st.composite
def v2_in_bytes(draw: st.DrawFn, datatype: str) -> Sent:
    """One tensor whose data stands behind the head, and which is wanted back in that form."""
    rows, columns = draw(st.integers(0, 4)), draw(st.sampled_from([2, 2, 3]))
    if datatype == "BYTES":
        element = (st.binary(max_size=8) | st.just(b"poison")).map(
            lambda one: struct.pack("<I", len(one)) + one
        )
    else:
        size = SIZES[datatype]
        element = st.binary(min_size=size, max_size=size)
    count = rows * columns
    data = b"".join(draw(st.lists(element, min_size=count, max_size=count)))
    tensor = {
        "name": "x",
        "datatype": datatype,
        "shape": [rows, columns],
        "parameters": {"binary_data_size": len(data)},
    }
    beside = draw(st.sampled_from([{}, {}, {}, {"k": 1.50}]))
    document = {"inputs": [tensor], "parameters": {"binary_data_output": True, **beside}}
    head = draw(written(st.just(document))).encode()
    return Sent(head + data, {HEADER_LENGTH: str(len(head))})


SIZES: Final = {"INT8": 1, "FP16": 2, "BF16": 2, "FP32": 4, "INT64": 8, "FP64": 8}
Requests = st.SearchStrategy[list[Sent]]


def requests(bodies: st.SearchStrategy[str]) -> Requests:
    """Bodies that are sent at once."""
    return at_once((bodies | nonsense).map(lambda text: Sent(text.encode())))


def at_once(sent: st.SearchStrategy[Sent]) -> Requests:
    """One or more; one alone must be told what the server says in every respect."""
    return st.lists(sent, min_size=1, max_size=10)


v2_requests = st.sampled_from(sorted(ELEMENTS)).flatmap(
    lambda datatype: requests(written(v2_documents(datatype)))
)
binary_requests = st.sampled_from([*sorted(SIZES), "BYTES", "BYTES"]).flatmap(
    lambda datatype: at_once(v2_in_bytes(datatype))
)


def v1_parts(said: Said) -> Any:
    """The answer by value."""
    return by_value(said.body)


def openai_parts(said: Said) -> Any:
    """Each vector in its place, and all that is beside them but usage."""
    document = by_value(said.body)
    document.pop("usage")
    entries = {entry["index"]: entry["embedding"] for entry in document.pop("data")}
    return entries, document


def v2_parts(said: Said) -> Any:
    """The head by value, and the bytes behind it."""
    end = int(said.headers.get(HEADER_LENGTH, len(said.body)))
    return by_value(said.body[:end]), said.body[end:]


def usage_of(answers: list[Said]) -> list[int]:
    """What callers are told they used, in all."""
    told = [json.loads(said.body)["usage"] for said in answers if said.status == 200]
    return [sum(one[name] for one in told) for name in ("prompt_tokens", "total_tokens")]


def assert_the_same(through: Said, straight: Said, parts: Callable[[Said], Any]) -> None:
    """One caller's answer, whoever shared its request."""
    assert through.status == straight.status
    if through.status == 200:
        assert parts(through) == parts(straight)
        assert through.of_the_server["model-version"] == "7"
    elif through.own:
        # In the sidecar's words, which say more; the server would have refused it too.
        assert through.status == 400
        assert json.loads(through.body)["error"]
    else:
        assert through.body == straight.body
    assert through.of_the_server.items() <= straight.of_the_server.items()


@pytest.mark.parametrize(
    ("protocol", "binary", "path", "drawing", "parts"),
    [
        (ServerProtocol.V1, False, "/v1/models/m:predict", requests(v1_bodies), v1_parts),
        (ServerProtocol.OPENAI, False, "/v1/embeddings", requests(openai_bodies), openai_parts),
        (ServerProtocol.V2, False, "/v2/models/m/infer", v2_requests, v2_parts),
        (ServerProtocol.V2, True, "/v2/models/m/infer", binary_requests, v2_parts),
    ],
    ids=["V1", "OpenAI", "V2", "V2 in bytes"],
)
async def test_what_is_said_through_the_sidecar_is_what_is_said_straight(
    fronts: Fronts,
    protocol: ServerProtocol,
    binary: bool,
    path: str,
    drawing: Requests,
    parts: Callable[[Said], Any],
) -> None:
    chain = await fronts[protocol].anew(binary=binary, headers=OF_THE_SERVER)
    server = fronts[protocol].server
    loop = asyncio.get_running_loop()

    async def said(base: str, sent: Sent) -> Said:
        async with chain.session.post(
            base + path, data=sent.body, headers=sent.headers
        ) as response:
            return Said(response.status, response.headers, await response.read())

    shared = alone = 0

    async def compare(drawn: list[Sent]) -> None:
        nonlocal shared, alone
        server.rows.clear()
        through = await asyncio.gather(*(said(chain.url(""), sent) for sent in drawn))
        most = max(server.rows, default=0)
        server.rows.clear()
        straight = [await said(server.url, sent) for sent in drawn]
        shared += most > max(server.rows, default=0)
        for sent, one, other in zip(drawn, through, straight, strict=True):
            try:
                assert_the_same(one, other, parts)
            except AssertionError as error:
                error.add_note(f"sent {sent}")
                error.add_note(f"through {one}, straight {other}")
                raise
        if protocol is ServerProtocol.OPENAI:
            assert usage_of(through) == usage_of(straight)
        if len(drawn) == 1 and not through[0].own:
            alone += 1
            assert through[0].of_the_server == straight[0].of_the_server

    @settings(max_examples=EXAMPLES)
    @given(drawing)
    def same(drawn: list[Sent]) -> None:
        asyncio.run_coroutine_threadsafe(compare(drawn), loop).result()

    await asyncio.to_thread(same)
    # A request held more rows than any caller sent, and somebody was alone, or nothing was
    # tried.
    assert min(shared, alone) > 0
