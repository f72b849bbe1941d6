"""What a server takes at present."""

from abc import abstractmethod
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineView,
    GenerationRequest,
    Waiting,
)
from batchedmodel_scheduling.generation.token_costs import TokenCosts

MOST_HEADS: Final = 32
"""Tenants of whom the first that has room goes, where the one whose turn it is has none."""


class Capacity:
    """How many more requests an engine runs at once."""

    def __init__(self, costs: TokenCosts) -> None:
        self.costs: Final = costs

    @property
    @abstractmethod
    def limit(self) -> int:
        """Requests or sequences that are at the server at once, at most."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """Tenants whose first requests are asked for room, in the order of turns."""

    @abstractmethod
    def has_room(self, request: GenerationRequest, now: float) -> bool:
        """Whether this request may go."""

    @abstractmethod
    def places(self, request: GenerationRequest) -> int:
        """Sequences that a request counts as which goes now."""

    @abstractmethod
    def configure(self, settings: AdmissionSettings) -> None:
        """Use other settings from now on."""

    @abstractmethod
    def saw(self, view: EngineView, now: float) -> None:
        """The server told of itself."""

    @abstractmethod
    def came(self, share: Share, now: float) -> None:
        """A request of this tenant came."""

    @abstractmethod
    def released(self, waiting: Waiting, now: float) -> None:
        """It goes to the server."""

    @abstractmethod
    def look(self, now: float, *, waits: bool) -> float:
        """Learn from what the server did lately; `waits`: a request does, at present.

        Returns when to look again though nothing happens.
        """
