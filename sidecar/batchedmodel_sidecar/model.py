"""The model behind, as far as the sidecar knows it once its server is ready."""

from dataclasses import dataclass

from batchedmodel_contract.description import ModelDescription
from batchedmodel_contract.profile import Profile
from batchedmodel_sidecar.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyModel:
    """What was learnt from a server that says it is ready."""

    description: ModelDescription
    profile: Profile
    tokens: Tokens | None
    """None when the model takes no text."""
