"""The adapters that a model server tells of."""

import pytest

from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_sidecar.errors import ModelNotFound, Rejected
from batchedmodel_sidecar.lora.served import UNKNOWN, ServedAdapters

FETCHING, LOADING = AdapterPhase.FETCHING, AdapterPhase.LOADING
READY, FAILED = AdapterPhase.READY, AdapterPhase.FAILED


def state(
    name: str, number: int, phase: AdapterPhase, reason: str = "", *, labelled: bool = False
) -> AdapterState:
    return AdapterState(name=name, number=number, phase=phase, reason=reason, own_labels=labelled)


def served(*states: AdapterState) -> ServedAdapters:
    made = ServedAdapters("m")
    made.told(states)
    return made


def number(adapters: ServedAdapters, name: str) -> int:
    chosen = adapters.choose(name)
    assert chosen is not None
    return chosen.number


def test_the_models_own_name_is_no_adapter() -> None:
    assert served(state("a", 1, READY)).choose("m") is None


def test_an_unknown_name_is_not_found_for_its_caller() -> None:
    with pytest.raises(ModelNotFound, match='model: "b" is not served here; m is') as caught:
        served(state("a", 1, READY)).choose("b")
    assert (caught.value.status, caught.value.field) == (404, "model")


def test_whoever_asks_for_an_unknown_name_reads_which_can_be_asked_for() -> None:
    # It named the model only, so that a misspelt adapter looked like one that was never there.
    names = [f"a{number:02}" for number in range(13)]
    states = [state(name, number, READY) for number, name in enumerate(names, 1)]
    for count, ending in (
        (0, "m is"),
        (2, "m is, and its adapters a00, a01"),
        (13, "a09 and 3 more"),
    ):
        with pytest.raises(ModelNotFound, match=f"{ending}$"):
            served(*states[:count], state("broken", 99, FAILED, "")).choose("b")


def test_one_that_failed_is_unavailable_with_the_reason_and_trying_again_does_not_help() -> None:
    with pytest.raises(Rejected, match="adapter a cannot be served: its rank is 32") as caught:
        served(state("a", 1, FAILED, "its rank is 32")).choose("a")
    assert (caught.value.status, caught.value.retry_after) == (503, None)


@pytest.mark.parametrize("phase", [FETCHING, LOADING])
def test_one_on_its_way_is_unavailable_for_a_while(phase: AdapterPhase) -> None:
    with pytest.raises(Rejected, match=f"adapter a is {phase}") as caught:
        served(state("a", 1, phase)).choose("a")
    assert (caught.value.status, caught.value.retry_after) == (503, 1.0)


@pytest.mark.parametrize("phase", [FETCHING, LOADING, FAILED])
def test_the_version_before_serves_until_the_next_is_ready(phase: AdapterPhase) -> None:
    adapters = served(state("a", 1, READY), state("a", 2, phase))
    assert number(adapters, "a") == 1
    adapters.told([state("a", 1, READY), state("a", 2, READY)])
    assert number(adapters, "a") == 2
    assert adapters.ready() == ["a"]


def test_a_call_in_progress_keeps_its_number_when_the_adapter_is_replaced_or_removed() -> None:
    adapters = served(state("a", 1, READY))
    before = adapters.choose("a")
    assert before is not None
    adapters.told([state("a", 2, READY)])
    assert (before.number, number(adapters, "a")) == (1, 2)
    adapters.told([])
    assert before.number == 1


def test_in_another_process_a_call_asks_for_the_version_there_and_never_for_anothers_number() -> (
    None
):
    adapters = served(state("a", 1, READY), state("b", 2, READY))
    before = adapters.choose("a")
    assert before is not None
    adapters.lost()
    assert before.number == UNKNOWN
    adapters.told([state("b", 1, READY), state("a", 2, LOADING)])
    assert before.number == UNKNOWN
    adapters.told([state("b", 1, READY), state("a", 2, READY)])
    assert before.number == 2


def test_one_with_labels_of_its_own_is_there_once_they_are_known() -> None:
    adapters = served(state("a", 1, READY), state("b", 2, READY, labelled=True))
    assert adapters.ready() == ["a"]
    states = [state("a", 1, READY), state("b", 2, READY, labelled=True)]
    adapters.told(states, {2: ("spam", "fine")})
    assert labels(adapters, "a") is None
    assert labels(adapters, "b") == ("spam", "fine")


def test_a_call_has_the_labels_of_its_version_or_of_the_one_in_another_process() -> None:
    first, second = state("a", 1, READY, labelled=True), state("a", 2, READY, labelled=True)
    adapters = ServedAdapters("m")
    adapters.told([first], {1: ("old", "older")})
    before = adapters.choose("a")
    assert before is not None
    adapters.told([second], {2: ("new", "newer")})
    assert (before.labels, labels(adapters, "a")) == (("old", "older"), ("new", "newer"))
    adapters.lost()
    assert before.labels == ("old", "older")
    # Its number there is another's here.
    adapters.told([state("b", 1, READY, labelled=True), second], {1: ("x", "y"), 2: ("b", "c")})
    assert before.labels == ("b", "c")


def labels(adapters: ServedAdapters, name: str) -> tuple[str, ...] | None:
    chosen = adapters.choose(name)
    assert chosen is not None
    return chosen.labels
