"""The model behind, as far as the sidecar knows it once its server is ready."""

from dataclasses import dataclass

from batchedmodel_contract.description import ModelDescription
from batchedmodel_contract.profile import Profile
from batchedmodel_sidecar.calls import Call, Row
from batchedmodel_sidecar.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyModel:
    """What was learnt from a server that says it is ready."""

    description: ModelDescription
    profile: Profile | None
    """None when nobody measured the server; batches then go out one at a time."""
    tokens: Tokens | None
    """None when the model takes no text."""
    depth: int
    """Batches that the server takes at once: one that runs, and perhaps one handed over early."""
    rows_pad: bool
    """Whether rows of different shapes may share a batch: the server pads or packs them, and the
    model's answers stay the same when it does."""

    def takes(self, call: Call) -> bool:
        """Whether the call's rows were checked for such a model."""
        # Nearly always the very same description, and comparing all of it takes a microsecond.
        mine = self.description
        return call.description is mine or call.description == mine

    def call_of(self, rows: tuple[Row, ...]) -> Call:
        """A call for this model; its rows were checked against the description."""
        return Call(
            rows=rows, description=self.description, key=None, equal_shapes=not self.rows_pad
        )
