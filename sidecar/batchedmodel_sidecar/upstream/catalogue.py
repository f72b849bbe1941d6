"""What belongs to each protocol that a server of one's own may speak.

Used where the parts are put together, and by the front for its paths.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from batchedmodel_contract.spec import ServerProtocol
from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.routes import Endpoint
from batchedmodel_sidecar.upstream.dialect import Dialect, ForeignAdapter, Probe
from batchedmodel_sidecar.upstream.headers import forwarded
from batchedmodel_sidecar.upstream.openai import OpenAI
from batchedmodel_sidecar.upstream.v1 import V1
from batchedmodel_sidecar.upstream.v2 import V2


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """One protocol for one model."""

    probe: Probe
    dialect: Dialect
    endpoint: Endpoint
    """What is asked there is batched."""

    def adapter(self, path: str, headers: Mapping[str, str]) -> Adapter:
        """The way of one request."""
        return ForeignAdapter(
            self.dialect,
            path=path,
            headers=forwarded(headers),
        )


def foreign(protocol: ServerProtocol, name: str) -> Foreign:
    """The protocol for a model of this name."""
    match protocol:
        case ServerProtocol.V2:
            v2 = V2(name)
            return Foreign(probe=v2, dialect=v2, endpoint=Endpoint.V2_INFER)
        case ServerProtocol.V1:
            v1 = V1(name)
            return Foreign(probe=v1, dialect=v1, endpoint=Endpoint.V1_PREDICT)
        case ServerProtocol.OPENAI:
            openai = OpenAI(name)
            return Foreign(probe=openai, dialect=openai, endpoint=Endpoint.EMBEDDINGS)
