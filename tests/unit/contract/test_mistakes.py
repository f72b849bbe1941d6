"""How bad input is shown to its author."""

import datetime
import json

import pytest
from hypothesis import given, settings

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest, Mistake, shown
from support.examples import examples
from support.strategies import json_values


def test_a_mistake_names_field_value_and_rule() -> None:
    mistake = Mistake(field="spec.batching.maxBatchSize", rule="is below the minimum 1", value="0")
    assert str(mistake) == "spec.batching.maxBatchSize: 0 is below the minimum 1"


def test_a_mistake_without_a_value_names_field_and_rule() -> None:
    assert str(Mistake(field="spec.model", rule="is required")) == "spec.model: is required"


def test_an_invalid_input_shows_the_value_it_was_given_even_when_that_is_null() -> None:
    assert str(InvalidInput("id", "is not a string", None)) == "id: null is not a string"
    assert str(InvalidInput("id", "is not a string")) == "id: is not a string"


def test_an_invalid_manifest_lists_each_mistake_on_a_line() -> None:
    first, second = Mistake(field="a", rule="is required"), Mistake(field="b", rule="is required")
    assert str(InvalidManifest((first, second))) == "a: is required\nb: is required"


def test_short_values_are_shown_as_json() -> None:
    value = {"text": "Grüße", "numbers": [1, 2.5, None, True]}
    assert json.loads(shown(value)) == value
    assert "Grüße" in shown(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x" * 100_000, id="long text"),
        pytest.param(list(range(100_000)), id="long list"),
        pytest.param({str(n): n for n in range(100_000)}, id="large object"),
    ],
)
def test_large_values_are_cut(value: object) -> None:
    assert len(shown(value)) == 83
    assert shown(value).endswith("...")


def test_a_value_of_80_characters_is_shown_whole() -> None:
    assert shown("x" * 78) == '"' + "x" * 78 + '"'
    assert shown("x" * 79).endswith("...")


def test_deep_nesting_is_shown_as_far_as_it_fits() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert shown(value) == "[" * 80 + "..."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(datetime.date(2026, 1, 2), '"datetime.date(2026, 1, 2)"', id="a YAML date"),
        pytest.param(1 << 100_000, "(a int that cannot be shown)", id="too many digits"),
        pytest.param("\ud800", '"\\ud800"', id="half a surrogate pair"),
    ],
)
def test_values_that_json_cannot_hold_are_shown_all_the_same(value: object, text: str) -> None:
    assert shown(value) == text


@settings(max_examples=examples(100))
@given(json_values())
def test_whatever_is_shown_is_short_and_can_be_sent(value: object) -> None:
    assert len(shown(value).encode()) <= 83 * 6


def test_a_fields_name_reaches_no_terminal_as_orders() -> None:
    mistake = Mistake(field="spec.\x1b[2J\x1b]0;x\a", rule="is not known here")
    assert str(mistake) == "spec.?[2J?]0;x?: is not known here"
