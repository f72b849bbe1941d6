"""The adapters that the model server tells of, and which of them a request asks for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput, shown
from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.request_head import only
from batchedmodel_sidecar.errors import RETRY_SOON, ModelNotFound, Rejected

Labels = tuple[str, ...]
UNKNOWN: Final = 2**31 - 1
"""The number of an adapter that there is no more: the server answers its rows with an error."""
_MOST_NAMED: Final = 10
"""Adapters that a refusal names."""
_BEST_FIRST: Final[Sequence[AdapterPhase]] = (
    AdapterPhase.READY,
    AdapterPhase.LOADING,
    AdapterPhase.FETCHING,
    AdapterPhase.FAILED,
)


@dataclass(frozen=True, slots=True, eq=False)
class ChosenAdapter:
    """The adapter of one request: the version that was served when it was asked for."""

    name: str
    _number: int
    _process: int
    _served: "ServedAdapters"
    _labels: Labels | None = None

    @property
    def number(self) -> int:
        """By which the server that is there now knows it.

        A server that was started anew counts anew. It is asked for the version that it has of this
        name.
        """
        if self._process == self._served.process:
            return self._number
        return self._served.number_of(self.name)

    @property
    def labels(self) -> Labels | None:
        """By which it classifies, whichever server answers; None: by those of the model."""
        number = self.number
        if self._process == self._served.process or number == UNKNOWN:
            return self._labels
        return self._served.labels_of(number)


class ServedAdapters:
    """What is known of one model's adapters."""

    def __init__(self, model: str, header: str = "") -> None:
        """`header`: by which requests may name one; empty where the model has no adapters."""
        self._model: Final = model
        self._header: Final = header
        self.states: tuple[AdapterState, ...] = ()
        """All versions, as the server told them last."""
        self._states: dict[str, AdapterState] = {}
        """The best version of each name."""
        self._labels: dict[int, Labels] = {}
        """By number: of those that classify by labels of their own."""
        self.process = 0
        """Counts the processes behind: in each of them numbers mean something else."""

    @property
    def are_known(self) -> bool:
        """Whether the model may have adapters."""
        return bool(self._header)

    def chosen(self, headers: Mapping[str, str], told: str | None) -> ChosenAdapter | None:
        """The adapter of a request; None for the model itself.

        `told`: what its path or its body names. Raises `InvalidInput`, and `Rejected` for what is
        not served, or not at present.
        """
        if self._header:
            header = only(headers, self._header)
            told = named(self._model, told=told, header=header, header_name=self._header)
        return None if told is None else self.choose(told)

    def told(
        self, states: Iterable[AdapterState], labels: Mapping[int, Labels] | None = None
    ) -> None:
        """The server has these, and no others; `labels`: by number, of those that lacked them.

        One that still lacks them has gone meanwhile, as the server is about to say.
        """
        known_labels = {**self._labels, **(labels or {})}
        self.states = tuple(
            [one for one in states if not one.own_labels or one.number in known_labels]
        )
        self._labels = {
            one.number: known_labels[one.number] for one in self.states if one.own_labels
        }
        by_name: dict[str, AdapterState] = {}
        for state in self.states:
            before = by_name.get(state.name)
            if before is None or _rank(state) < _rank(before):
                by_name[state.name] = state
        self._states = by_name

    def lost(self) -> None:
        """The server is gone; another process may take its place."""
        self.process += 1
        self.told(())

    def ready(self) -> list[str]:
        """The names that can be asked for now, in their order."""
        return sorted(name for name, one in self._states.items() if one.phase is AdapterPhase.READY)

    def choose(self, name: str) -> ChosenAdapter | None:
        """The adapter of this name; None for the model's own.

        Raises `ModelNotFound` for one that nobody knows, and `Rejected` for one that is not there
        yet, or cannot be.
        """
        if name == self._model:
            return None
        state = self._states.get(name)
        if state is None:
            raise ModelNotFound(f"model: {shown(name)} is not served here; {self._served()}")
        if state.phase is AdapterPhase.READY:
            labels = self._labels.get(state.number)
            return ChosenAdapter(name, state.number, self.process, self, labels)
        if state.phase is AdapterPhase.FAILED:
            message = f"adapter {name} cannot be served: {state.reason}"
            raise Rejected(Rejection.NOT_READY, message, field="model")
        message = f"adapter {name} is {state.phase}"
        raise Rejected(Rejection.NOT_READY, message, retry_after=RETRY_SOON, field="model")

    def _served(self) -> str:
        """What can be asked for, in words; of many adapters some."""
        ready = self.ready()
        more = f" and {len(ready) - _MOST_NAMED} more" if len(ready) > _MOST_NAMED else ""
        adapters = f", and its adapters {', '.join(ready[:_MOST_NAMED])}{more}"
        return f"{self._model} is{adapters if ready else ''}"

    def labels_of(self, number: int) -> Labels | None:
        """By which the adapter of this number classifies; None: by those of the model."""
        return self._labels.get(number)

    def number_of(self, name: str) -> int:
        """The number of the version that is ready under this name, or of none."""
        state = self._states.get(name)
        return state.number if state and state.phase is AdapterPhase.READY else UNKNOWN


def _rank(state: AdapterState) -> tuple[int, int]:
    """Lower is better: what serves, then what is newer."""
    return _BEST_FIRST.index(state.phase), -state.number


def named(model: str, *, told: str | None, header: str | None, header_name: str) -> str:
    """The name of the adapter that a request asks for, or of the `model` itself.

    `told`: what its path or its body names. A header counts where that is the model or nothing:
    gateways put it beside whatever their callers say. Raises `InvalidInput` where it names another
    adapter, for one of both is a mistake.
    """
    if header is None or header in ("", model):
        return told or model
    if told in (None, model, header):
        return header
    raise InvalidInput(header_name, f"names another adapter than {told}, which is asked", header)
