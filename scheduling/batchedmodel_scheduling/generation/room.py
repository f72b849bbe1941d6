"""What `Admission` asks of the room at a server, whoever's it is, and what it tells of events."""

from abc import abstractmethod
from collections.abc import Hashable

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.at_server import Load
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineView,
    GenerationRequest,
    Waiting,
)


class Room:
    """Whether one more request may go. Events that teach nothing are not heard."""

    passes = 0
    """Tenants that may not go now whom others pass, at most; 0: all wait for whose turn it is."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """What is at the server at once, at most."""

    @property
    @abstractmethod
    def any_free(self) -> bool:
        """Whether there is room for somebody."""

    @property
    def asks(self) -> bool:
        """Whether to ask for whom there is room: whose turn it is may not be the only one."""
        return self.any_free

    @property
    @abstractmethod
    def mostly_free(self) -> bool:
        """Whether nothing that comes waits there, so that first tokens show how long they take."""

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether more would go if there were more room."""

    @property
    def looks(self) -> bool:
        """Whether to ask again soon though nothing happens, while somebody waits."""
        return False

    @abstractmethod
    def free_for(self, request: GenerationRequest, now: float) -> bool:
        """Whether it may go, where `asks`."""

    @abstractmethod
    def counted(self, request: GenerationRequest) -> int:
        """Sequences that a request counts as which goes now."""

    def next_event(self, now: float) -> float:
        """When time alone lets somebody go."""
        return NEVER

    @abstractmethod
    def configure(self, settings: AdmissionSettings) -> None:
        """Use other settings from now on."""

    @abstractmethod
    def saw(self, view: EngineView, now: float) -> None:
        """The server told of itself."""

    def came(self, share: Share, now: float) -> None:
        """A request of this tenant came."""

    def released(self, waiting: Waiting, now: float) -> None:
        """It goes to the server."""

    def refused(self, key: Hashable, now: float) -> None:
        """The server refused a request that it was sent."""

    def looked(self, load: Load, now: float, *, pressed: bool) -> None:
        """The server did so much in a span of time; `pressed`: meanwhile others waited here."""
