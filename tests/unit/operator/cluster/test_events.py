"""What Kopf's events become: a key of the work queue, and what is known of their object."""

from typing import Any

import pytest

from batchedmodel_operator.cluster.handlers import registry
from batchedmodel_operator.interfaces import LOOKED_AT
from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.observed.state import Key

_KEY = Key(namespace="team", name="minilm")
_METADATA = {"namespace": "team", "labels": {"batchedmodel.dev/name": "minilm"}}


async def _told(kind: Kind, type: str | None, **body: Any) -> list[tuple[Key, str]]:
    """The keys, each with the digest of an HPA."""
    told: list[tuple[Key, str]] = []

    def add(key: Key, *, awaited: bool = False, version: str = "", autoscaler: str = "") -> None:
        told.append((key, autoscaler))

    found: Any = registry(add, None)
    [handler] = [one for one in found._watching._handlers if one.id == RESOURCES[kind].plural]
    await handler.fn(type=type, body={"metadata": _METADATA, **body})
    return told


@pytest.mark.parametrize("type", [None, "ADDED", "MODIFIED"])
async def test_an_hpa_that_is_there_comes_with_its_digest(type: str | None) -> None:
    assert await _told(Kind.AUTOSCALER, type, **{LOOKED_AT: "a"}) == [(_KEY, "a")]


async def test_the_end_of_an_hpa_is_news_whatever_it_looked_like() -> None:
    assert await _told(Kind.AUTOSCALER, "DELETED", **{LOOKED_AT: "a"}) == [(_KEY, "")]


async def test_other_children_are_news_always() -> None:
    assert await _told(Kind.DEPLOYMENT, "MODIFIED") == [(_KEY, "")]
