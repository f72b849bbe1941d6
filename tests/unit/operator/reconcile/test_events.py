"""Which BatchedModels an event about a child or a pod concerns."""

from typing import Any

import pytest

from batchedmodel_kube.names import NAME_LABEL
from batchedmodel_operator.observed.state import Key, is_news, keys_of

OWNER: dict[str, Any] = {
    "apiVersion": "batchedmodel.dev/v1alpha1",
    "kind": "BatchedModel",
    "name": "minilm",
    "controller": True,
}


def _child(label: str | None, *owners: dict[str, Any]) -> dict[str, Any]:
    labels = {} if label is None else {NAME_LABEL: label}
    metadata = {"namespace": "team", "labels": labels, "ownerReferences": list(owners)}
    return {"kind": "Service", "metadata": metadata}


def _names(child: dict[str, Any]) -> set[str]:
    return {key.name for key in keys_of(child)}


def test_a_child_concerns_its_model_once() -> None:
    assert keys_of(_child("minilm", OWNER)) == {Key(namespace="team", name="minilm")}


def test_a_child_that_was_relabelled_concerns_both() -> None:
    assert _names(_child("other", OWNER)) == {"minilm", "other"}


@pytest.mark.parametrize("label", [None, ""])
def test_a_child_without_its_label_concerns_its_owner(label: str | None) -> None:
    assert _names(_child(label, OWNER)) == {"minilm"}


def test_a_pod_concerns_the_model_of_its_label_and_not_its_replica_set() -> None:
    replica_set = {**OWNER, "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "minilm-1"}
    assert _names(_child("minilm", replica_set)) == {"minilm"}


@pytest.mark.parametrize("change", [{"controller": False}, {"apiVersion": "else.dev/v1"}])
def test_owners_of_another_sort_do_not_count(change: dict[str, Any]) -> None:
    assert _names(_child(None, {**OWNER, **change})) == set()


@pytest.mark.parametrize("child", [{}, {"metadata": {"labels": None}}], ids=["empty", "no labels"])
def test_an_object_that_says_nothing_concerns_nobody(child: dict[str, Any]) -> None:
    assert keys_of(child) == set()


@pytest.mark.parametrize(
    ("status", "news"),
    [
        (None, True),
        ({}, True),
        ({"observedGeneration": 2}, True),
        ({"observedGeneration": 3}, False),
    ],
)
def test_an_edited_manifest_is_news_until_somebody_has_looked(status: object, news: bool) -> None:
    assert is_news({"metadata": {"generation": 3}, "status": status}) is news
