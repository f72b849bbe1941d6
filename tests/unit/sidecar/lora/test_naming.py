"""Which adapter a request asks for."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_sidecar.errors import ModelNotFound
from batchedmodel_sidecar.lora.served import ServedAdapters, named
from support.examples import examples

NAMES: Final = st.none() | st.sampled_from(("m", "a", "b", ""))


def asked(*, told: str | None = None, header: str | None = None) -> str:
    return named("m", told=told or None, header=header, header_name="task-id")


@settings(max_examples=examples(200))
@given(told=NAMES, header=NAMES)
def test_an_adapter_that_is_named_is_never_taken_for_the_model_or_for_another(
    told: str | None, header: str | None
) -> None:
    meant = {name for name in (told, header) if name not in (None, "", "m")}
    if len(meant) > 1:
        with pytest.raises(InvalidInput, match="task-id: .* names another adapter than"):
            asked(told=told, header=header)
    else:
        assert asked(told=told, header=header) == next(iter(meant), "m")


def test_the_header_counts_beside_the_models_name_and_without_any() -> None:
    assert asked(told="m", header="a") == asked(header="a") == "a"
    assert asked(told="a", header="m") == asked(told="a") == "a"
    assert asked() == asked(header="") == "m"


def names(header: str = "task-id") -> ServedAdapters:
    served = ServedAdapters("m", header)
    served.told([AdapterState(name="a", number=3, phase=AdapterPhase.READY)])
    return served


def test_a_header_of_another_name_means_nothing() -> None:
    found = names("x-adapter")
    assert found.chosen({"task-id": "a"}, None) is None
    chosen = found.chosen({"x-adapter": "a"}, None)
    assert chosen is not None
    assert (chosen.name, chosen.number) == ("a", 3)


def test_a_header_that_is_sent_twice_with_two_values_is_refused() -> None:
    with pytest.raises(InvalidInput, match="more than once"):
        names().chosen({"task-id": "a", "Task-Id": "b"}, None)


def test_in_front_of_a_model_without_adapters_no_header_is_read() -> None:
    found = ServedAdapters("m")
    assert not found.are_known
    assert found.chosen({"task-id": "a"}, None) is None
    assert found.chosen({}, "m") is None
    with pytest.raises(ModelNotFound, match='"a" is not served here; m is'):
        found.chosen({}, "a")
