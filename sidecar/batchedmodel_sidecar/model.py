"""What the sidecar knows of a model whose server is ready."""

from dataclasses import dataclass, field, replace

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import Values
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.backends.native.version_lease import VersionUsers
from batchedmodel_sidecar.calls import Call, Row
from batchedmodel_sidecar.codec.tokenizer import Tokens
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyModel:
    """A model that can be asked."""

    description: ModelDescription
    profile: Profile | None
    """None when nobody measured the server."""
    tokens: Tokens | None
    """None when the model takes no text."""
    texts: TextPreparer | None = field(default=None, compare=False)
    """None when it generates no text."""
    depth: int
    """Batches that each worker of the server takes at once: the one that runs, and perhaps the
    next."""
    rows_pad: bool
    """Whether rows of different shapes may share a batch: the server pads or packs them, which
    leaves the model's answers as they are."""
    users: VersionUsers = field(default_factory=VersionUsers, compare=False, repr=False)
    """The requests that were parsed for this version."""

    @property
    def generation(self) -> GenerationDescription | None:
        """Of the texts that it generates; None where it generates none."""
        return None if self.texts is None else self.texts.description

    def asked_by(self, share: Share) -> "ReadyModel":
        """The same model, which tokenises long texts in this tenant's turn."""
        return self if self.tokens is None else replace(self, tokens=self.tokens.asked_by(share))

    def takes(self, call: Call) -> bool:
        """Whether the call's rows were checked for such a model."""
        # It is nearly always the very same description. To compare all of it takes a microsecond.
        mine = self.description
        return call.description is mine or call.description == mine

    def holds(self, settings: BatchSettings) -> int:
        """Batches that all its workers take at once."""
        return self.depth * settings.max_concurrent_batches

    def call_of(self, rows: tuple[Row, ...], params: Values | None = None) -> Call:
        """A call for this model; its rows and `params` were checked against the description."""
        return Call(
            rows=rows,
            description=self.description,
            # Two versions may serve at a time, and each batch goes to one of them.
            key=self.description.version,
            equal_shapes=not self.rows_pad,
            params=params,
        )


def take(call: Call, *models: ReadyModel) -> bool:
    """Whether one of the models takes the call."""
    return any(model.takes(call) for model in models)


def still_needed(*replaced: ReadyModel | None) -> tuple[ReadyModel, ...]:
    """The replaced versions that requests still need: those that were parsed for them."""
    return tuple(model for model in replaced if model is not None and model.users.any)
