"""The protocols behind: bodies to rows and answers to bodies, without a server."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.headers import (
    common,
    end_to_end,
    forwarded,
    shared,
    trace_context,
)
from batchedmodel_sidecar.backends.upstream.protocol import Envelope, Response, drafted
from batchedmodel_sidecar.backends.upstream.protocols.openai import shares
from batchedmodel_sidecar.errors import ModelNotFound
from support.examples import examples

PATHS = {
    ServerProtocol.V2: "/v2/models/m/infer",
    ServerProtocol.V1: "/v1/models/m:predict",
    ServerProtocol.OPENAI: "/v1/embeddings",
}

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@pytest.mark.parametrize("datatype", ["INT128", "int64", "", 'INT64\\"', "9" * 1000])
def test_a_datatype_that_the_protocol_lacks_goes_to_the_server_alone(datatype: str) -> None:
    entry = '{"name": "x", "datatype": "%s", "shape": [1, 1], "data": [1]}'
    dialect = Upstream(ServerProtocol.V2, "m").protocol
    for given_type, alone in (("INT64", False), (datatype, True)):
        body = f'{{"inputs": [{entry % given_type}]}}'.encode()
        draft = dialect.parse(body, None, 4096)
        assert (draft is None) is alone


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ServerProtocol)
@settings(max_examples=examples(50))
@given(data=st.data())
def test_a_body_is_understood_or_goes_alone_or_is_refused(
    protocol: ServerProtocol, data: st.DataObject
) -> None:
    named = st.sampled_from(
        "inputs outputs parameters id name shape datatype data instances input model".split()
    )
    wild = st.recursive(
        scalars | st.sampled_from(["INT64", "BYTES", -1, [1, 1], [2]]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(named, inner, max_size=4),
        max_leaves=12,
    )
    documents = st.dictionaries(named, wild).map(lambda d: json.dumps(d).encode())
    body = data.draw(st.binary(max_size=30) | documents)
    length = data.draw(st.none() | st.just(str(len(body))) | st.text("0123456789-x", max_size=4))
    dialect = Upstream(protocol, "m").protocol
    try:
        draft = dialect.parse(body, length, 4096)
    except (InvalidInput, ModelNotFound):
        return
    if draft is not None:
        envelope = Envelope(path=PATHS[protocol], headers=(), frame=draft.frame)
        hash((envelope, draft.shapes))
        json.loads(b"".join(dialect.backend_request(draft.rows, envelope).parts))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ServerProtocol)
@settings(max_examples=examples(50))
@given(data=st.data())
def test_an_answer_is_divided_or_refused(protocol: ServerProtocol, data: st.DataObject) -> None:
    bodies = {
        ServerProtocol.V2: b'{"inputs":[{"name":"x","shape":[2],"datatype":"INT8","data":[1,2]}]}',
        ServerProtocol.V1: b'{"instances": [1, 2]}',
        ServerProtocol.OPENAI: b'{"input": ["a", "b"]}',
    }
    named = st.sampled_from(
        "outputs name shape datatype data parameters predictions index embedding usage "
        "total_tokens binary_data_size".split()
    )
    wild = st.recursive(
        scalars | st.sampled_from(["INT64", [2, 1], [2], 0, 1]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(named, inner, max_size=5),
        max_leaves=15,
    )
    body = data.draw(
        st.binary(max_size=30) | st.dictionaries(named, wild).map(lambda d: json.dumps(d).encode())
    )
    length = data.draw(st.none() | st.just(str(len(body))) | st.text("0123456789-x", max_size=4))
    dialect = Upstream(protocol, "m").protocol
    draft = dialect.parse(bodies[protocol], None, 4096)
    assert draft is not None
    response = Response(
        status=200,
        headers=(),
        content_type="application/json",
        header_length=length,
        body=body,
    )
    try:
        dealt = dialect.dealt(response, draft.rows, alone=data.draw(st.booleans()))
    except InvalidInput:
        return
    assert len(dealt.rows) == 2


@given(total=st.integers(0, 10**6), weights=st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_shares_add_up_and_are_within_one_of_what_is_fair(total: int, weights: list[int]) -> None:
    parts = shares(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1


def test_hop_by_hop_headers_end_here_and_so_do_those_that_connection_names() -> None:
    given = (
        ("Connection", "keep-alive, X-Hop"),
        ("Keep-Alive", "timeout=5"),
        ("x-hop", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "3"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("X-Model-Version", "7"),
    )
    assert end_to_end(given) == (
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("X-Model-Version", "7"),
    )
    assert shared(given, refused=False) == (("X-Model-Version", "7"),)


def test_when_to_come_back_is_told_to_all_who_were_refused_together() -> None:
    given = (("Retry-After", "3"), ("X-Trace", "t"))
    assert shared(given, refused=True) == (("Retry-After", "3"),)
    assert shared(given, refused=False) == ()


def test_only_what_all_answers_say_is_said_of_a_call_in_several_requests() -> None:
    one, other = (("a", "1"), ("b", "2")), (("b", "2"), ("a", "3"))
    assert common([one, other]) == (("b", "2"),)
    assert common([one]) == one


def test_who_asks_is_forwarded_and_nothing_else_of_a_caller() -> None:
    headers = {"authorization": "Bearer x", "user-agent": "me", "x-request-priority": "1"}
    assert forwarded(headers) == (("authorization", "Bearer x"),)


def test_what_connection_names_was_meant_for_the_sidecar_alone() -> None:
    sent = CIMultiDict(
        [
            ("Authorization", "Bearer x"),
            ("X-Tenant-Id", "a"),
            ("traceparent", "t"),
            ("connection", "keep-alive, authorization"),
            ("Connection", "TraceParent"),
        ]
    )
    assert forwarded(sent) == (("x-tenant-id", "a"),)
    assert trace_context(sent) == ()


def test_a_header_sent_twice_is_forwarded_twice_and_in_its_order() -> None:
    sent = CIMultiDict([("Cookie", "b=2"), ("Authorization", "x"), ("cookie", "a=1")])
    told = (("authorization", "x"), ("cookie", "b=2"), ("cookie", "a=1"))
    assert forwarded(sent) == told
    assert forwarded(CIMultiDict([("Cookie", "b=2"), ("Authorization", "x")])) != told
    assert trace_context(CIMultiDict([("tracestate", "a=1"), ("Tracestate", "b=2")])) == (
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
    )


def test_a_parameter_that_must_be_understood_and_is_not_is_named() -> None:
    body = b'{"inputs": [], "parameters": {"timeout": NaN}}'
    with pytest.raises(InvalidInput, match=r"parameters\.timeout: "):
        Upstream(ServerProtocol.V2, "m").protocol.parse(body, None, 4096)


def rows_in(data: object, shape: list[int]) -> int | None:
    """How many rows are seen in the one input of a v2 request; None when it goes alone."""
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
    body = json.dumps({"inputs": [entry]}).encode()
    draft = Upstream(ServerProtocol.V2, "m").protocol.parse(body, None, 4096)
    return None if draft is None else len(draft.rows)


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([[1, 2, 3]], [1, 2]),
        ([[4]], [1, 2]),
        ([4, []], [1, 2]),
        ([4, [5]], [1, 2]),
        ([[4, [5]]], [1, 2]),
        ([[]], [1, 1]),
        ([[1, 2], [3]], [2]),
        ([[[1, 2], [3, 4, 5]]], [1, 2, 2]),
        ([[1, 2, 3, 4]], [1, 2, 2]),
        ([[{"a": 1, "b": 2}]], [1, 2]),
        ([1], [1] * 1000),
    ],
)
def test_a_row_that_holds_other_than_its_shape_says_shares_no_request(
    data: object, shape: list[int]
) -> None:
    """A server that flattens would take its neighbour's numbers for its own."""
    assert rows_in(data, shape) is None


leaves = scalars | st.sampled_from(["],[", '\\"', "[", "\\", "a,b", "{"])


@pytest.mark.slow
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.booleans(), st.data())
def test_rows_are_told_apart_in_whatever_has_its_shape(
    shape: list[int], flat: bool, data: st.DataObject
) -> None:
    def drawn(sizes: list[int]) -> Any:
        if not sizes:
            return data.draw(leaves)
        return [drawn(sizes[1:]) for _ in range(sizes[0])]

    assert rows_in(drawn([math.prod(shape)] if flat else shape), shape) == shape[0]


def is_of_shape(value: Any, shape: list[int]) -> bool:
    if not shape:
        return not isinstance(value, list)
    if not isinstance(value, list) or len(value) != shape[0]:
        return False
    return all(is_of_shape(one, shape[1:]) for one in value)


@given(
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_rows_are_told_apart_in_nothing_that_has_not_its_shape(
    value: Any, shape: list[int]
) -> None:
    fits = is_of_shape(value, shape) or is_of_shape(value, [math.prod(shape)])
    assert (rows_in(value, shape) is not None) == fits


@pytest.mark.parametrize("of", ["inputs", "outputs"])
def test_a_tensor_of_which_more_is_said_than_is_understood_goes_as_it_came(of: str) -> None:
    dialect = Upstream(ServerProtocol.V2, "m").protocol
    entry = {"name": "x", "datatype": "INT64", "shape": [1], "data": [1]}
    asked: dict[str, list[dict[str, Any]]] = {"inputs": [entry], "outputs": [{"name": "y"}]}
    assert drafted(dialect, json.dumps(asked).encode(), None, 4096).rows
    asked[of][0]["unit"] = "km"
    with pytest.raises(Unbatchable):
        drafted(dialect, json.dumps(asked).encode(), None, 4096)


def one_row(**also: Any) -> bytes:
    entry = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}
    return json.dumps({"inputs": [entry], **also}).encode()


@pytest.mark.parametrize("of", ["inputs", "outputs"])
def test_a_request_of_very_many_tensors_goes_as_it_came(of: str) -> None:
    """Each would be an object of its own, on the loop that serves all."""
    dialect = Upstream(ServerProtocol.V2, "m").protocol
    entry = json.loads(one_row())["inputs"][0]
    for count in (256, 257):
        also = {of: [entry | {"name": f"z{number}"} for number in range(count)]}
        if of == "outputs":
            also = {of: [{"name": f"z{number}"} for number in range(count)]}
        if count == 256:
            assert len(drafted(dialect, one_row(**also), None, 4096).rows) == 1
        else:
            with pytest.raises(Unbatchable):
                drafted(dialect, one_row(**also), None, 4096)


def test_outputs_are_asked_for_as_the_caller_does_whatever_form_it_wants() -> None:
    dialect = Upstream(ServerProtocol.V2, "m").protocol
    outputs = [
        {"name": "y", "parameters": {"classification": 2, "binary_data": True}},
        {"name": "z"},
    ]
    parsed = drafted(dialect, one_row(outputs=outputs), None, 4096)
    envelope = Envelope(path="/", headers=(), frame=parsed.frame)
    sent = json.loads(b"".join(dialect.backend_request(parsed.rows, envelope).parts))
    assert sent["outputs"] == [{"name": "y", "parameters": {"classification": 2}}, {"name": "z"}]
