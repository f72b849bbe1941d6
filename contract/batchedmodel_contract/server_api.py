"""Paths and states by which the sidecar follows our model server.

The events stream is the life line between the two: the sidecar keeps it open, each line tells a
state, and its end tells the server's death at once, without anybody asking.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.mistakes import InvalidInput


class ModelState(StrEnum):
    """Life of a loaded model."""

    LOADING = "LOADING"
    WARMING = "WARMING"
    READY = "READY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"
    """It cannot be loaded; the process stays, so that the reason can be read."""
    HUNG = "HUNG"
    """A forward pass takes far too long. If it ends after all READY follows, else only a restart
    helps."""
    LOST = "LOST"
    """The device is gone, and the process ends to be started anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvent:
    """One line of the events stream."""

    state: ModelState
    detail: str

    def to_mapping(self) -> dict[str, str]:
        """The JSON object of the line."""
        return {"state": self.state, "detail": self.detail}


def state_event_from_mapping(mapping: Any) -> StateEvent:
    """The event in a line; raises `InvalidInput`."""
    try:
        return StateEvent(state=ModelState(mapping["state"]), detail=str(mapping["detail"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("event", f"cannot be read: {error!r}") from error


AT_WORK: Final = "x-batch-at-work"
"""Header of a 503: the device was lost over this batch. Without it a 503 says that nothing was done
for the batch."""


def model_path(name: str) -> str:
    """GET: v2 metadata."""
    return f"/v2/models/{name}"


def infer_path(name: str) -> str:
    """POST: one batch in the batch extension, or a plain v2 request."""
    return f"/v2/models/{name}/infer"


def profile_path(name: str) -> str:
    """GET: `Profile` as JSON."""
    return f"/v2/models/{name}/profile"


def tokenizer_path(name: str) -> str:
    """GET: the model's tokenizer.json, or 404."""
    return f"/v2/models/{name}/tokenizer"


def events_path(name: str) -> str:
    """GET: an endless stream of JSON lines, the present state first."""
    return f"/v2/models/{name}/events"
