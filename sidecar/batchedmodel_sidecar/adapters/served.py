"""The adapters that the model server tells of, and which of them a request may have."""

from collections.abc import Iterable, Sequence
from typing import Final

from batchedmodel_contract.adapters.state import AdapterPhase, AdapterState
from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.errors import RETRY_SOON, ModelNotFound, Rejected

UNKNOWN: Final = 2**31 - 1
"""The number of an adapter that there is no more: the server answers its rows with an error."""
_BEST_FIRST: Final[Sequence[AdapterPhase]] = (
    AdapterPhase.READY,
    AdapterPhase.LOADING,
    AdapterPhase.FETCHING,
    AdapterPhase.FAILED,
)


class ChosenAdapter:
    """The adapter of one request: the version that was served when it was asked for."""

    __slots__ = ("_number", "_process", "_served", "name")

    def __init__(self, name: str, number: int, process: int, served: "ServedAdapters") -> None:
        self.name: Final = name
        self._number = number
        self._process = process
        self._served = served

    @property
    def number(self) -> int:
        """By which the server that is there now knows it.

        A server that was started anew counts anew. It is asked for the version that it has of this
        name.
        """
        if self._process == self._served.process:
            return self._number
        return self._served.number_of(self.name)


class ServedAdapters:
    """What is known of one model's adapters."""

    def __init__(self, model: str) -> None:
        self._model: Final = model
        self._states: tuple[AdapterState, ...] = ()
        self._known: dict[str, AdapterState] = {}
        """The best version of each name."""
        self.process = 0
        """Counts the processes behind: in each of them numbers mean something else."""

    @property
    def states(self) -> Sequence[AdapterState]:
        """All versions, as the server told them last."""
        return self._states

    def told(self, states: Iterable[AdapterState]) -> None:
        """The server has these, and no others."""
        self._states = tuple(states)
        known: dict[str, AdapterState] = {}
        for state in self._states:
            before = known.get(state.name)
            if before is None or _rank(state) < _rank(before):
                known[state.name] = state
        self._known = known

    def lost(self) -> None:
        """The server is gone; another process may take its place."""
        self.process += 1
        self.told(())

    def ready(self) -> list[str]:
        """The names that can be asked for now, in their order."""
        return sorted(name for name, one in self._known.items() if one.phase is AdapterPhase.READY)

    def choose(self, name: str) -> ChosenAdapter | None:
        """The adapter of this name; None for the model's own.

        Raises `ModelNotFound` for one that nobody knows, and `Rejected` for one that is not there
        yet, or cannot be.
        """
        if name == self._model:
            return None
        state = self._known.get(name)
        if state is None:
            raise ModelNotFound(f"model: {shown(name)} is not served here; {self._model} is")
        if state.phase is AdapterPhase.READY:
            return ChosenAdapter(name, state.number, self.process, self)
        if state.phase is AdapterPhase.FAILED:
            message = f"adapter {name} cannot be served: {state.reason}"
            raise Rejected(Rejection.NOT_READY, message, field="model")
        message = f"adapter {name} is {state.phase}"
        raise Rejected(Rejection.NOT_READY, message, retry_after=RETRY_SOON, field="model")

    def number_of(self, name: str) -> int:
        """The number of the version that is ready under this name, or of none."""
        state = self._known.get(name)
        return state.number if state and state.phase is AdapterPhase.READY else UNKNOWN


def _rank(state: AdapterState) -> tuple[int, int]:
    """Lower is better: what serves, then what is newer."""
    return _BEST_FIRST.index(state.phase), -state.number
