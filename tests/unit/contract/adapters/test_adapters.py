"""Adapters on the wire: which there should be, in what state they are, and which an item has."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.adapters.settings import (
    AdapterSettings,
    adapter_settings,
    adapters_from_json,
    adapters_from_mapping,
)
from batchedmodel_contract.adapters.state import (
    LARGEST_NUMBER,
    AdapterPhase,
    AdapterState,
    adapter_state_from_mapping,
)
from batchedmodel_contract.inference import packed
from batchedmodel_contract.inference.batch import BatchRequest
from batchedmodel_contract.inference.batch_wire import (
    to_request,
    write_request,
)
from batchedmodel_contract.inference.ragged import Ragged, ragged
from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.inference.v2 import read_body, write_body
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.adapters import AdapterItem, Adapters
from batchedmodel_contract.manifest.source import HuggingFace, Source
from batchedmodel_contract.processes.server_api import (
    ModelState,
    StateEvent,
    state_event_from_mapping,
)
from support.examples import examples
from support.strategies import json_values, ragged_batches

NUMBERS = st.integers(1, LARGEST_NUMBER)
STATES = st.builds(
    AdapterState,
    name=st.text(max_size=8),
    number=NUMBERS,
    phase=st.sampled_from(AdapterPhase),
    reason=st.text(max_size=8),
    own_labels=st.booleans(),
)
SOURCES = st.sampled_from(
    (
        Source(path="/adapters/legal"),
        Source(python_package="my_adapters.legal"),
        Source(hugging_face=HuggingFace(repo="team/legal", revision="v1")),
    )
)
ITEMS = st.lists(
    st.builds(AdapterItem, name=st.sampled_from("abcde"), source=SOURCES),
    max_size=3,
    unique_by=lambda item: item.name,
).map(tuple)
ONE = ragged("x", Datatype.FP32, [((1,), bytes(4))])


@settings(max_examples=examples(100))
@given(
    st.builds(
        AdapterSettings,
        slots=st.integers(1, 256),
        max_rank=st.integers(1, 512),
        cpu_memory_bytes=st.none() | st.integers(0, 2**40),
        items=ITEMS,
        folder=st.none() | st.just("/adapters"),
        header=st.sampled_from(("task-id", "x-adapter")),
    )
)
def test_settings_are_read_as_they_were_written(told: AdapterSettings) -> None:
    assert adapters_from_json(told.to_json()) == told


def test_settings_of_a_manifest_count_memory_in_bytes() -> None:
    items = (AdapterItem(name="legal", source=Source(path="/a")),)
    told = adapter_settings(Adapters(slots=4, cpu_memory="1Gi"), items)
    assert told == AdapterSettings(slots=4, cpu_memory_bytes=1 << 30, items=items)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"slots": 0}, "adapters.json: slots"),
        ({"slot": 8}, "adapters.json: slot: is not known"),
        ({"max_rank": 513}, "adapters.json: max_rank"),
        ({"items": [{"name": "a"}]}, "source"),
        ({"items": [{"name": "a", "source": {}}]}, "exactly one source"),
        ({"items": [{"name": "a/b", "source": {"path": "x"}}]}, "name"),
        ({"items": [{"name": "a", "source": {"path": "x"}}] * 2}, "more than once"),
    ],
)
def test_settings_that_break_a_rule_are_refused_by_name(wrong: Any, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        adapters_from_mapping(wrong)


@settings(max_examples=examples(100))
@given(json_values())
def test_any_document_is_settings_or_refused(document: object) -> None:
    try:
        adapters_from_mapping(document)
    except InvalidInput:
        pass
    else:
        assert document == {}


@settings(max_examples=examples(100))
@given(st.none() | st.lists(STATES, max_size=3).map(tuple))
def test_states_travel_in_the_events_stream(states: tuple[AdapterState, ...] | None) -> None:
    event = StateEvent(state=ModelState.READY, detail="", version="1", adapters=states)
    assert state_event_from_mapping(json.loads(json.dumps(event.to_mapping()))) == event


@settings(max_examples=examples(100))
@given(json_values() | st.fixed_dictionaries({"name": st.text(), "number": json_values()}))
def test_any_document_is_no_state_of_an_adapter(document: object) -> None:
    with pytest.raises(InvalidInput):
        adapter_state_from_mapping(document)


@settings(max_examples=examples(100))
@given(ragged_batches(3, at_least=1), st.data())
def test_adapters_of_items_travel_beside_them(
    inputs: tuple[Ragged, ...], data: st.DataObject
) -> None:
    items = len(inputs[0].shapes)
    numbers = data.draw(st.lists(st.just(0) | NUMBERS, min_size=items, max_size=items))
    read = _sent(BatchRequest(inputs=inputs, adapters=tuple(numbers)))
    assert read.adapters == (tuple(numbers) if any(numbers) else ())
    assert [one.name for one in read.inputs] == [one.name for one in inputs]


def test_a_packed_record_carries_no_adapters() -> None:
    assert packed.can_pack_batch(BatchRequest(inputs=(ONE,)), None)
    assert not packed.can_pack_batch(BatchRequest(inputs=(ONE,), adapters=(7,)), None)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(
            Tensor(":adapters", Datatype.INT64, (1,), struct.pack("<q", 1)), id="datatype"
        ),
        pytest.param(Tensor(":adapters", Datatype.INT32, (2,), bytes(8)), id="count"),
        pytest.param(
            Tensor(":adapters", Datatype.INT32, (1,), struct.pack("<i", -1)), id="negative"
        ),
    ],
)
def test_a_column_of_adapters_that_does_not_fit_its_items_is_refused(told: Tensor) -> None:
    tensors = [
        Tensor("x", Datatype.FP32, (1,), bytes(4)),
        Tensor("x:shapes", Datatype.INT64, (1, 1), struct.pack("<q", 1)),
        told,
    ]
    length, parts = write_body({}, tensors, "inputs", lambda head: json.dumps(head).encode())
    head, read = read_body(b"".join(parts), str(length), "inputs", json.loads)
    with pytest.raises(InvalidInput, match=":adapters"):
        to_request(head, read)


def _sent(request: BatchRequest) -> BatchRequest:
    length, parts = write_request(request)
    head, tensors = read_body(b"".join(parts), str(length), "inputs", json.loads)
    return to_request(head, tensors)
