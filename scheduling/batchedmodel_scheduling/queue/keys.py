"""Compatibility keys of items that share batches with few others or none."""

from collections.abc import Hashable
from typing import NamedTuple

from batchedmodel_scheduling.queue.items import Item, ItemId


class Alone(NamedTuple):
    """The key of an item over which the server died: no other item has it."""

    item: ItemId


class Apart(NamedTuple):
    """The key of items that share batches with items of their own tenant alone."""

    key: Hashable
    tenant: str
    call: int = 0
    """The number of a call that shares batches with no other."""


def original(key: Hashable) -> Hashable:
    """The key that an item came with, whether or not it goes apart."""
    return key.key if isinstance(key, Apart) else key


def apart(item: Item) -> Item:
    """The item with a key of its tenant's own; unchanged where it has such a key already."""
    if isinstance(item.key, Apart | Alone):
        return item
    return item._replace(key=Apart(item.key, item.share.tenant))
