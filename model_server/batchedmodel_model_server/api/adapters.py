"""Adapters of one model, as a handler offers them. Importable without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBounds:
    """How many adapters a device holds at once, and how large each may be."""

    slots: int
    max_rank: int


class LowRank(NamedTuple):
    """What an adapter adds to one module: input times `a` times `b`, its scaling included."""

    a: Any
    """inputs x rank, on the host in the model's datatype."""
    b: Any
    """rank x outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWeights:
    """One adapter in main memory, checked against its base."""

    modules: Mapping[str, LowRank] = field(repr=False)
    """By the name of the base's module."""
    heads: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Parameters of modules that the adapter replaces, by the module's name and their own."""
    labels: tuple[str, ...] | None = None
    """Of its own classification; None: those of the base."""


class Adapters(Protocol):
    """Adapters in the slots of a device. Slots count from 1; a row of slot 0 has no adapter."""

    def read(self, folder: Path) -> AdapterWeights:
        """An adapter's files. Off the device thread; raises `CannotLoad`."""
        ...

    def put(self, slot: int, weights: AdapterWeights) -> None:
        """Copy it into a slot, in place of what was there. On the device thread."""
        ...

    def clear(self, slot: int) -> None:
        """Empty a slot. On the device thread."""
        ...

    def bytes_of(self, weights: AdapterWeights) -> int:
        """Bytes of main memory that it takes."""
        ...

    def labels_of(self, weights: AdapterWeights) -> tuple[str, ...] | None:
        """By which it classifies, as many as the base has; None: by those of the base."""
        ...
