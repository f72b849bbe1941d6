"""Random v2 requests come back from an echo bit by bit, alone or with others in one batch."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import orjson
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.tensors import HEADER_LENGTH, Datatype, Tensor, bytes_to_values
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.protocols.v2 import read_body
from support.chain import Chain
from support.echo_server import ECHO, EVERY_DATATYPE, echo_chain
from support.examples import examples
from support.strategies import element_data

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Sent in JSON, what JSON cannot say or says in more than one way would not come back as it was.
ONLY_IN_BINARY = (Datatype.FP16, Datatype.BF16, Datatype.BOOL)


class Sent(NamedTuple):
    """A request: its tensors, and which of them are JSON on the way there and on the way back."""

    tensors: tuple[Tensor, ...]
    json_in: frozenset[str]
    json_out: frozenset[str]


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Some rows of every datatype."""
    rows = draw(st.integers(1, 3))
    tensors = []
    for spec in EVERY_DATATYPE.inputs:
        shape = (rows, draw(st.integers(1, 3)))
        data = draw(element_data(spec.datatype, math.prod(shape)))
        tensors.append(Tensor(name=spec.name, datatype=spec.datatype, shape=shape, data=data))
    sayable = [t.name for t in tensors if t.datatype not in ONLY_IN_BINARY and has_json(t)]
    names = st.frozensets(st.sampled_from(sayable)) if sayable else st.just(frozenset[str]())
    return Sent(tuple(tensors), draw(names), draw(names))


def has_json(tensor: Tensor) -> bool:
    try:
        bytes_to_values(tensor.data, tensor.datatype)
    except InvalidInput:
        return False
    return True


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    async with echo_chain(tmp_path_factory.mktemp("echo"), EVERY_DATATYPE) as running:
        yield running


async def echoed(chain: Chain, sent: Sent) -> tuple[Tensor, ...]:
    """The request's answer, each output as the request asked for it."""
    outputs = [
        {"name": ECHO + one.name, "parameters": {"binary_data": one.name not in sent.json_out}}
        for one in sent.tensors
    ]
    in_binary = [one for one in sent.tensors if one.name not in sent.json_in]
    head: dict[str, Any] = {"outputs": outputs}
    listed = [
        {"name": one.name, "datatype": one.datatype, "shape": one.shape}
        | (
            {"data": bytes_to_values(one.data, one.datatype)}
            if one.name in sent.json_in
            else {"parameters": {"binary_data_size": len(one.data)}}
        )
        for one in sent.tensors
    ]
    text = orjson.dumps(head | {"inputs": listed})
    body = b"".join([text, *(one.data for one in in_binary)])
    headers = {HEADER_LENGTH: str(len(text))}
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, data=body, headers=headers) as response:
        content = await response.read()
        assert response.status == 200, content
        length = response.headers.get(HEADER_LENGTH)
    _, found = read_body(content, length, "outputs")
    return found


@settings(max_examples=examples(40))
@given(st.lists(requests(), min_size=1, max_size=6))
async def test_every_row_of_every_datatype_comes_back(chain: Chain, crowd: list[Sent]) -> None:
    answers = await asyncio.gather(*(echoed(chain, sent) for sent in crowd))
    for sent, answer in zip(crowd, answers, strict=True):
        assert {(one.name, one.datatype, one.shape, bytes(one.data)) for one in answer} == {
            (ECHO + one.name, one.datatype, one.shape, bytes(one.data)) for one in sent.tensors
        }
