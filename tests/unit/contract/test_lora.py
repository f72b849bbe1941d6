"""Adapters on the wire: which there should be, in what state they are, and which an item has."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.batch import BatchRequest, Ragged, ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link import model_frames
from batchedmodel_contract.link.batches import read_batch, write_batch
from batchedmodel_contract.lora import (
    LARGEST_NUMBER,
    AdapterPhase,
    AdapterSettings,
    AdapterState,
    adapter_state_from_mapping,
    adapters_from_json,
)
from batchedmodel_contract.manifest.adapters import AdapterItem
from batchedmodel_contract.manifest.source import HuggingFace, Source
from batchedmodel_kube.manifest.adapters import Adapters
from batchedmodel_kube.manifest.pod_settings import adapter_settings, adapters_to_json
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
    assert adapters_from_json(adapters_to_json(told)) == told


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
        adapters_from_json(json.dumps(wrong))


@settings(max_examples=examples(100))
@given(json_values())
def test_any_document_is_settings_or_refused(document: object) -> None:
    try:
        adapters_from_json(json.dumps(document))
    except InvalidInput:
        pass
    else:
        assert document == {}


@settings(max_examples=examples(100))
@given(st.lists(STATES, max_size=3).map(tuple))
def test_states_travel_with_the_labels_of_new_ones(states: tuple[AdapterState, ...]) -> None:
    sent = model_frames.Adapters(states=states, labels={7: ("yes", "no")})
    assert model_frames.read_adapters(model_frames.write_adapters(sent)) == sent


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


def _sent(request: BatchRequest) -> BatchRequest:
    return read_batch(memoryview(b"".join(write_batch(request))))


def test_text_that_names_no_file_is_refused_with_the_file() -> None:
    """The folder's name passed, and the first look at it ended the watch for good."""
    with pytest.raises(InvalidInput, match="adapters.json: cannot be read"):
        adapters_from_json('{"folder": "/x\\ud800"}')
