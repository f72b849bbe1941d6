"""Bodies read by the form of an earlier one mean what they mean when read as a whole."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import RAGGED
from batchedmodel_contract.inference.params import Param
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.protocol import Parsed
from batchedmodel_sidecar.protocols.v2 import Forms, V2Protocol
from support.echo_server import echoing
from support.sidecar_world import MODEL

Understood = tuple[object, ...]
Outcome = Understood | tuple[type[Exception], str]


def taking(datatype: Datatype) -> ReadyModel:
    params = {"scale": Param("FP32", 1.0, max=9)}
    description = replace(echoing(x=(datatype, (RAGGED,))), params=params)
    return replace(MODEL, description=description)


MODELS: Final = {datatype: taking(datatype) for datatype in (Datatype.INT64, Datatype.FP32)}
FORMS: Final = [
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":DATA}]}',
    '{"inputs": [{"name": "x", "datatype": "DT", "shape": [SHAPE], "data": DATA}]}',
    '{"inputs":[{"data":DATA,"name":"x","shape":[SHAPE],"datatype":"DT"}],"id":"7"}',
    '{"id":"\\u0061","inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":DATA}]}',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"d\\u0061ta":[1,2]}],"data":DATA}',
    '{"data":DATA,"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":[1,2]}]}',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":[1,2],"data":DATA}]}',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":DATA}],"parameters":'
    '{"timeout":5000,"priority":1},"outputs":[{"name":"echo_x","parameters":{"binary_data":true}}]}',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":DATA}],"parameters":{"scale":2}}',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":DATA}],"parameters":{"scale":10}}',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"parameters":{"data":DATA}}]}',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":DATA}],"id":"]}"} ',
    '{"inputs":[{"name":"x","datatype":"DT","shape":[SHAPE],"data":DATA},'
    '{"name":"y","datatype":"DT","shape":[SHAPE],"data":DATA}]}',
]
ODD: Final = [1.5, -0.0, 1e30, 1e39, 2**63, 2**53 + 1]
TEXTS: Final = (
    *("[[1,2]]", "[[1],[2]]", "[ 1 ,\n2 ]", "[]", "[1,2", "[1,,2]", "[01,2]", "[1 2]"),
    *('["1","2"]', "[true,false]", "[null,1]", "[NaN,1]", "1", "{}", "[+1,2]", "[.5,1]"),
)
DATA: Final = st.one_of(
    st.lists(st.integers(-3, 9), min_size=1, max_size=3).map(str),
    st.lists(st.sampled_from(ODD), min_size=1, max_size=3).map(str),
    st.sampled_from(TEXTS),
    st.text("[]0123456789.,eE+- \t\x0b", max_size=12),
)
SHAPES: Final = st.sampled_from(["1,2", "2,1", "1,3", "1,1", "2", "", "0,2", "1,-2"])


def understood(parsed: Parsed | None) -> Understood:
    """All that a body was understood to say."""
    assert parsed is not None
    call = parsed.call
    options = (call.equal_shapes, call.params, call.envelope, call.trace, parsed.options)
    return call.rows, call.description, call.key, parsed.memo, options


async def outcome(adapter: V2Protocol, body: bytes, model: ReadyModel) -> Outcome:
    try:
        known = adapter.parse_at_once(body, model, lambda: 4096)
        return understood(known or await adapter.parse(body, None, model, 4096))
    except (InvalidInput, CallError) as error:
        return type(error), str(error)


@pytest.mark.slow
@given(st.sampled_from(FORMS), st.sampled_from(list(MODELS)), SHAPES, st.lists(DATA, min_size=2))
async def test_what_came_before_changes_nothing(
    form: str, datatype: Datatype, shape: str, data: list[str]
) -> None:
    experienced, model = V2Protocol(), MODELS[datatype]
    for text in data:
        body = form.replace("DT", datatype).replace("SHAPE", shape).replace("DATA", text).encode()
        assert await outcome(experienced, body, model) == await outcome(V2Protocol(), body, model)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], FORMS[2], FORMS[7], FORMS[8], FORMS[11]])
async def test_other_numbers_in_a_known_form_are_read_alone(form: str) -> None:
    adapter, model = V2Protocol(), MODELS[Datatype.INT64]
    first, second = (
        form.replace("DT", "INT64").replace("SHAPE", "2,2").replace("DATA", data).encode()
        for data in ("[1,2,3,4]", "[[5,6],[7,8]]")
    )
    assert adapter.forms.parsed(second, model, lambda: 4096) is None
    whole = await adapter.parse(second, None, model, 4096)
    await adapter.parse(first, None, model, 4096)
    assert understood(adapter.forms.parsed(second, model, lambda: 4096)) == understood(whole)
    assert [bytes(row.values[0].data[:1]) for row in whole.call.rows] == [b"\5", b"\7"]


async def test_forms_of_one_model_are_not_those_of_the_next() -> None:
    adapter, model = V2Protocol(), MODELS[Datatype.INT64]
    body = FORMS[0].replace("DT", "INT64").replace("SHAPE", "1,2").replace("DATA", "[1,2]").encode()
    await adapter.parse(body, None, model, 4096)
    assert adapter.forms.parsed(body, taking(Datatype.INT64), lambda: 4096) is None


async def test_forms_are_bounded_in_number() -> None:
    adapter, model = V2Protocol(), MODELS[Datatype.INT64]
    for number in range(1000):
        body = FORMS[2].replace("DT", "INT64").replace("SHAPE", "1,1").replace("DATA", "[1]")
        await adapter.parse(body.replace('"7"', f'"{number}"').encode(), None, model, 4096)
        assert len(adapter.forms) <= 256
    assert len(Forms()) == 0
