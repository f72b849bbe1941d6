"""States and paths by which the sidecar follows the model server."""

import pytest
from hypothesis import given, settings

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes import server_api
from batchedmodel_contract.processes.server_api import (
    ModelState,
    StateEvent,
    state_event_from_mapping,
)
from support.examples import examples
from support.strategies import json_values


@pytest.mark.parametrize("state", ModelState)
def test_an_event_survives_its_line(state: ModelState) -> None:
    event = StateEvent(state=state, detail="3 of 7 shapes warmed up")
    assert state_event_from_mapping(event.to_mapping()) == event


@pytest.mark.parametrize(
    "line",
    [
        pytest.param({"state": "READY"}, id="no detail"),
        pytest.param({"detail": "x"}, id="no state"),
        pytest.param({"state": "ready", "detail": ""}, id="an unknown state"),
        pytest.param({"state": ["READY"], "detail": ""}, id="a list for a state"),
        pytest.param("READY", id="a bare word"),
        pytest.param(None, id="null"),
    ],
)
def test_a_line_that_is_no_event_is_refused(line: object) -> None:
    with pytest.raises(InvalidInput, match="event: cannot be read"):
        state_event_from_mapping(line)


@settings(max_examples=examples(100))
@given(json_values())
def test_any_line_is_an_event_or_refused(line: object) -> None:
    with pytest.raises(InvalidInput):
        state_event_from_mapping(line)


def test_each_path_names_the_model_and_differs_from_the_others() -> None:
    paths = [
        path("minilm")
        for path in (
            server_api.model_path,
            server_api.infer_path,
            server_api.profile_path,
            server_api.tokenizer_path,
            server_api.events_path,
        )
    ]
    assert len(set(paths)) == len(paths)
    assert all(path.startswith("/v2/models/minilm") for path in paths)
