"""Paths and states by which the sidecar follows our model server.

The sidecar keeps the events stream open. Each line tells a state, and the end of the stream tells
at once that the server is dead.
"""

from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.adapters.state import AdapterState, adapter_state_from_mapping
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.model_state import ON_THE_CPU as ON_THE_CPU
from batchedmodel_contract.link.model_state import ModelState as ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvent:
    """One line of the events stream."""

    state: ModelState
    detail: str
    version: str | None = None
    """The version that is READY. The one before it goes on answering requests that were read for
    it, until `release_path` is called or nothing has come for a while."""
    adapters: tuple[AdapterState, ...] | None = None
    """All of the model's adapters; None where nothing is said of them."""
    profile: int = 0
    """Grows by one whenever the version that is READY has another profile, as more was measured."""

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object of the line."""
        named: dict[str, Any] = {} if self.version is None else {"version": self.version}
        if self.adapters is not None:
            named["adapters"] = [state.to_mapping() for state in self.adapters]
        if self.profile:
            named["profile"] = self.profile
        return {"state": self.state, "detail": self.detail, **named}


def state_event_from_mapping(mapping: Any) -> StateEvent:
    """The event in a line; raises `InvalidInput`."""
    try:
        version, adapters = mapping.get("version"), mapping.get("adapters")
        return StateEvent(
            state=ModelState(mapping["state"]),
            detail=str(mapping["detail"]),
            version=None if version is None else str(version),
            adapters=None
            if adapters is None
            else tuple(adapter_state_from_mapping(one) for one in adapters),
            profile=int(mapping.get("profile", 0)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput("event", f"cannot be read: {error!r}") from error


AT_WORK: Final = "x-batch-at-work"
"""Header of a 503: the device was lost during this batch. Without it the batch was not begun."""

INDEX: Final = "/v2/repository/index"
"""POST: the versions that the process knows, each with its state and the reason."""


def load_path(name: str) -> str:
    """POST: serve what the model's source holds now; answered once it is served."""
    return f"/v2/repository/models/{name}/load"


def unload_path(name: str) -> str:
    """POST: give the model's memory back; answered once that is done."""
    return f"/v2/repository/models/{name}/unload"


def model_path(name: str, version: str | None = None) -> str:
    """GET: v2 metadata; of the version that is served now, unless one is named."""
    return f"/v2/models/{name}" + ("" if version is None else f"/versions/{version}")


def infer_path(name: str, version: str | None = None) -> str:
    """POST: one batch in the batch extension, or a plain v2 request."""
    return f"{model_path(name, version)}/infer"


def profile_path(name: str, version: str | None = None) -> str:
    """GET: `Profile` as JSON."""
    return f"{model_path(name, version)}/profile"


def tokenizer_path(name: str, version: str | None = None) -> str:
    """GET: the model's tokenizer.json, or 404."""
    return f"{model_path(name, version)}/tokenizer"


def generation_path(name: str, version: str | None = None) -> str:
    """GET: `GenerationDescription` as JSON, or 404 where the model generates nothing."""
    return f"{model_path(name, version)}/generation"


def engine_socket_path(model_socket: str) -> str:
    """Where frames of generated tokens go: a Unix socket beside the one for batches."""
    return f"{model_socket}.engine"


def labels_path(name: str, number: int | str) -> str:
    """GET: the labels by which the adapter of this number classifies, as a JSON list; or 404."""
    return f"{model_path(name)}/adapters/{number}/labels"


def release_path(name: str, version: str) -> str:
    """POST: the sidecar needs this version no longer, which another one has replaced."""
    return f"{model_path(name, version)}/release"


def events_path(name: str) -> str:
    """GET: an endless stream of JSON lines, the present state first."""
    return f"/v2/models/{name}/events"
