"""Parts of a manifest that have the form of Kubernetes' own types, as the contract reads them."""

from typing import Any

import pytest

from batchedmodel_contract.schema.rules import ANY_TEXT, Broken, Rule, Text
from batchedmodel_contract.schema.shapes import ListOf
from batchedmodel_kube.schema.kubernetes_types import (
    AFFINITY,
    BEHAVIOR,
    CONTAINER,
    TOLERATION,
    VOLUME,
)
from batchedmodel_kube.schema.quantities import Amount
from batchedmodel_kube.schema.shapes import NamedEntries, Shape


def complaint(rule: Rule, value: object) -> str:
    with pytest.raises(Broken) as caught:
        rule.read(value)
    return str(caught.value)


def test_a_part_is_passed_on_as_it_is_written() -> None:
    volume = {"name": "a", "emptyDir": {"sizeLimit": "1Gi"}, "hostPath": None}
    assert VOLUME.read(volume) is volume
    tolerations = [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 3}]
    assert ListOf(each=TOLERATION).read(tolerations) == tolerations


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (TOLERATION, [], "is not a mapping"),
        (AFFINITY, [], "is not a core/v1 affinity"),
        (VOLUME, {"emptyDir": 1}, "has at emptyDir a value that is not a mapping"),
        (VOLUME, {"emptydir": {}}, "has at emptydir a value that belongs to no known field"),
        (VOLUME, {7: {}}, "has at 7 a value that belongs to no known field"),
        (VOLUME, {"x" * 500: 1}, f"has at {'x' * 64} a value that belongs to no known field"),
        (
            VOLUME,
            {"projected": {"sources": [{}, {"secret": {"items": [{"mode": True}]}}]}},
            "has at projected.sources[1].secret.items[0].mode a value that is not an integer",
        ),
        (
            CONTAINER,
            {"volumeMounts": [{"name": "a", "mountPath": "/a"}, {"mountPath": "/a"}]},
            "has at volumeMounts a value that has an entry without a name of 1 to 63 characters",
        ),
        (
            CONTAINER,
            {"command": ["a", 1]},
            "has at command[1] a value that is not a string (quote numbers)",
        ),
        (
            CONTAINER,
            {"command": ["a"] * 257},
            "has at command a value that has 257 entries, more than the 256 allowed",
        ),
        (
            BEHAVIOR,
            {"scaleUp": {"policies": [None]}},
            "has at scaleUp.policies[0] a value that is not a mapping",
        ),
    ],
)
def test_a_part_that_is_of_another_form_is_refused_by_its_place(
    rule: Rule, value: Any, expected: str
) -> None:
    assert complaint(rule, value) == expected


def test_a_part_that_is_nested_without_end_is_refused_at_its_first_wrong_value() -> None:
    value: list[object] = []
    for _ in range(5_000):
        value = [value]
    assert complaint(VOLUME, {"emptyDir": value}).endswith("is not a mapping")


def test_entries_have_names_of_their_own() -> None:
    entries = NamedEntries(
        each=Shape(fields={"name": ANY_TEXT}), form="a list of things", at_most=2
    )
    assert complaint(entries, {}) == "is not a list of things"
    assert complaint(entries, [{"name": "a"}] * 3) == "has 3 entries, more than the 2 allowed"
    assert complaint(entries, [{"name": "a"}, {"name": "a"}]) == "names a more than once"
    assert complaint(entries, [{"name": "a"}, {"name": ""}]).startswith("has an entry without")


@pytest.mark.parametrize("good", [0, -1, "1Gi", "http", "", "x" * 64])
def test_an_amount_is_a_number_or_a_text(good: object) -> None:
    assert Amount().read(good) == good


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (0.5, "is neither an integer nor a string (quote fractions)"),
        (True, "is neither an integer nor a string (quote fractions)"),
        (None, "is neither an integer nor a string (quote fractions)"),
        ("x" * 65, "is longer than 64 characters"),
        (10**15 + 1, "is above the maximum 1000000000000000"),
    ],
    ids=lambda value: str(value)[:8],
)
def test_what_is_neither_is_refused(bad: object, expected: str) -> None:
    assert complaint(Amount(), bad) == expected


def test_a_text_may_be_empty_and_is_bounded() -> None:
    assert Text(at_least=0, at_most=1).read("") == ""
    assert complaint(Text(at_least=0, at_most=1), "ab") == "is longer than 1 characters"
