"""What stands beside the rows: nobody else's answer follows from it, and it is bounded."""

import json
from typing import Any

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.protocol import (
    Envelope,
    Response,
    SplitReply,
    Subject,
    drafted,
)
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.calls import Answer, Call, Row, Timing, Value
from batchedmodel_sidecar.errors import UpstreamReply
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.http.body_reader import BodyReader
from support.sidecar_world import DESCRIPTION

V2 = Upstream(ServerProtocol.V2, "m").protocol
PATH = "/v2/models/m/infer"
ROW = Row(values=(Value((2,), b"1,2"),), length=1)


def asked(shape: list[int], **more: Any) -> dict[str, Any]:
    size = shape[0] * shape[1]
    return {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": shape, "data": [1] * size}],
        **more,
    }


def subject(document: dict[str, Any]) -> Subject | None:
    draft = drafted(V2, json.dumps(document).encode(), None, 4096)
    return V2.subject(Envelope(path=PATH, headers=(), frame=draft.frame), draft.rows[0])


def test_rows_of_another_shape_or_with_other_parameters_have_another_form() -> None:
    usual = subject(asked([2, 4]))
    assert usual is not None
    assert subject(asked([3, 4])) == usual, "however many"
    for other in (asked([2, 2]), asked([2, 4], parameters={"top_k": 2})):
        found = subject(other)
        assert found is not None
        assert (found.asked == usual.asked, found.form == usual.form) == (True, False)
    found = subject(asked([2, 4], outputs=[{"name": "y"}]))
    assert found is not None
    assert found.asked != usual.asked


def answered(rows: int = 2, *, alone: bool = False, output: Any = None, **head: Any) -> SplitReply:
    y = {"name": "y", "datatype": "FP32", "shape": [rows], "data": [1.5] * rows}
    reply = {name: value for name, value in (y | (output or {})).items() if value is not None}
    document = {"model_name": "m", "outputs": [reply], **head}
    response = Response(
        status=200,
        headers=(),
        content_type="application/json",
        header_length=None,
        body=json.dumps(document).encode(),
    )
    return V2.dealt(response, [ROW] * rows, alone=alone)


@pytest.mark.parametrize(
    ("output", "head", "field"),
    [
        ({}, {"explanations": ["a", "b"]}, "explanations"),
        ({}, {"parameters": {"seen": [1, 2]}}, "parameters.seen"),
        ({"parameters": {"labels": ["a", "b"]}}, {}, "outputs.y.labels"),
    ],
)
def test_a_list_beside_the_rows_of_several_callers_is_told_to_none_of_them(
    output: dict[str, Any], head: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput, match="the answer is for several callers") as refused:
        answered(output=output, **head)
    assert refused.value.mistake.field == field
    answered(output=output, alone=True, **head)
    answered(output={"parameters": {"unit": "m"}}, parameters={"a": 1}, version="1")


def rendered(reply: SplitReply) -> dict[str, Any]:
    draft = drafted(V2, json.dumps(asked([2, 2])).encode(), None, 4096)
    replies = tuple(UpstreamReply(status=200, headers=(), frame=reply.frame) for _ in reply.rows)
    answer = Answer(
        outputs=reply.outputs, rows=tuple(reply.rows), timing=Timing(1, 0.0, 0.0), replies=replies
    )
    body = V2.render(draft.memo, answer)
    document: dict[str, Any] = json.loads(b"".join([body.data, *body.tail]))
    return document


def test_rows_of_no_values_are_answered_as_none() -> None:
    (output,) = rendered(answered(output={"shape": [2, 0], "data": []}))["outputs"]
    assert output["data"] == []
    assert output["shape"] == [2, 0]


@pytest.mark.parametrize(
    "output",
    [
        pytest.param({"data": None}, id="no data"),
        pytest.param({"data": None, "parameters": {"binary_data_size": 0}}, id="no bytes"),
    ],
)
def test_rows_of_no_values_need_no_data(output: dict[str, Any]) -> None:
    assert answered(output={"shape": [2, 0], **output}).rows == [(Value((0,), b""),)] * 2


@pytest.mark.parametrize("empty", [[], {}])
def test_nothing_beside_the_rows_is_nobodys(empty: Any) -> None:
    answered(explanations=empty, parameters={"seen": empty})


def test_values_where_the_shape_has_none_are_nonsense() -> None:
    with pytest.raises(InvalidInput, match="has other than its shape says"):
        answered(output={"shape": [2, 0], "data": [1.5]})


def test_a_size_of_binary_data_that_is_not_there_is_nonsense() -> None:
    with pytest.raises(InvalidInput, match="the answer has none"):
        answered(output={"parameters": {"binary_data_size": 8}})
    answered(output={"parameters": {"binary_data_size": None}})


@pytest.mark.parametrize("protocol", [ServerProtocol.V1, ServerProtocol.V2, ServerProtocol.OPENAI])
@pytest.mark.parametrize("width", [1, 100])
def test_a_body_of_very_many_fields_is_refused(protocol: ServerProtocol, width: int) -> None:
    body = json.dumps({f"{number:0{width}}": 1 for number in range(1001)}).encode()
    with pytest.raises(InvalidInput, match="has more than 1000 fields"):
        Upstream(protocol, "m").protocol.parse(body, None, 4096)


async def test_what_is_kept_of_a_large_body_stays_charged() -> None:
    bodies = BodyReader(max_bytes=1000, budget=ByteBudget(1000), slots=SharedRegions(1))
    memory = SharedMemory()
    memory.write(b"x" * 600)
    call = Call((ROW,), DESCRIPTION, None, envelope=Envelope(path=PATH, headers=(), frame=None))
    with bodies.hold(Share("one")) as mine, bodies.hold(Share("two")) as theirs:
        assert mine.grow(600)
        bodies.charge_rows(memory, call, mine)
        assert not theirs.grow(600), "its frame may be all of it"
        bodies.charge_rows(memory, Call((ROW,), DESCRIPTION, None), mine)
        assert theirs.grow(600), "of ours only the rows are kept"
    wide = Row(values=(Value((900,), b"x" * 900),), length=1)
    call = Call((wide,), DESCRIPTION, None, envelope=Envelope(path=PATH, headers=(), frame=None))
    with bodies.hold(Share("one")) as mine, bodies.hold(Share("two")) as theirs:
        assert mine.grow(600)
        bodies.charge_rows(memory, call, mine)
        assert not theirs.grow(200), "its rows may be larger than their text"
    memory.close()


@pytest.mark.parametrize("protocol", [ServerProtocol.V1, ServerProtocol.V2, ServerProtocol.OPENAI])
def test_what_stands_beside_rows_is_bounded(protocol: ServerProtocol) -> None:
    theirs = Upstream(protocol, "m").protocol
    rows: dict[str, Any] = {"instances": [1], "input": ["a"], **asked([1, 2])}
    names = {ServerProtocol.V1: "instances", ServerProtocol.V2: "inputs"}
    name = names.get(protocol, "input")
    document = {name: rows[name], "more": "x" * 1_000_000}
    assert len(drafted(theirs, json.dumps(document).encode(), None, 4096).rows) == 1
    document["more"] += "x" * 100_000
    with pytest.raises(InvalidInput, match=r'^more: "\\"x.* beside the rows'):
        drafted(theirs, json.dumps(document).encode(), None, 4096)


def test_what_stands_in_an_input_beside_its_rows_is_bounded() -> None:
    document = asked([1, 2])
    document["inputs"][0]["parameters"] = {"more": "x" * 1_100_000}
    with pytest.raises(InvalidInput, match="beside the rows"):
        drafted(V2, json.dumps(document).encode(), None, 4096)
