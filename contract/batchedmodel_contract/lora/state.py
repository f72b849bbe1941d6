"""In what state the adapters of a model are, as the model server tells the sidecar.

A number stands for one version of one adapter in one process of the server, and is never used
again in it. A replaced adapter gets a new one. The old number goes on answering requests that were
read for it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput

NO_ADAPTER: Final = 0
"""In place of a number: the model itself."""
LARGEST_NUMBER: Final = 2**31 - 1
STATUS_FIELD: Final = "adapters"
"""Of a BatchedModel's status: its adapters, as its pods tell of them."""


class AdapterPhase(StrEnum):
    """Life of one version of an adapter."""

    FETCHING = "FETCHING"
    """Its files are being brought."""
    LOADING = "LOADING"
    """They are there, and are being read and checked."""
    READY = "READY"
    """Requests may ask for it."""
    FAILED = "FAILED"
    """The reason says why. It is tried again where that can help."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        return self in (AdapterPhase.READY, AdapterPhase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """One version of one adapter."""

    name: str
    number: int
    """1 to 2^31 - 1."""
    phase: AdapterPhase
    reason: str = ""
    """Why it is not READY; empty where it is."""
    own_labels: bool = False
    """Whether it classifies by other labels than the model; ADAPTERS has them."""

    def to_mapping(self) -> dict[str, Any]:
        """As JSON."""
        told = {"name": self.name, "number": self.number, "phase": self.phase}
        told |= {"reason": self.reason} if self.reason else {}
        return told | ({"ownLabels": True} if self.own_labels else {})


def adapter_state_from_mapping(mapping: Any) -> AdapterState:
    """The state in a document; raises `InvalidInput`."""
    try:
        number = mapping["number"]
        if type(number) is not int or not NO_ADAPTER < number <= LARGEST_NUMBER:
            raise ValueError(f"number {number!r} is none from 1 to {LARGEST_NUMBER}")
        return AdapterState(
            name=str(mapping["name"]),
            number=number,
            phase=AdapterPhase(mapping["phase"]),
            reason=str(mapping.get("reason", "")),
            own_labels=mapping.get("ownLabels") is True,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput("adapter", f"cannot be read: {error!r}") from error
