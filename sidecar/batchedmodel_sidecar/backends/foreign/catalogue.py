"""What belongs to each protocol that a server of one's own may speak.

Used where the parts are put together, and by the data handler for its paths.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.spec import ServerProtocol
from batchedmodel_sidecar.backends.foreign.headers import forwarded, trace_context
from batchedmodel_sidecar.backends.foreign.protocol import BackendProtocol, ForeignAdapter, Probe
from batchedmodel_sidecar.backends.foreign.protocols.openai import OpenAI
from batchedmodel_sidecar.backends.foreign.protocols.v1 import V1
from batchedmodel_sidecar.backends.foreign.protocols.v2 import V2
from batchedmodel_sidecar.backends.foreign.routes import ForeignRoutes
from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import adapters

_ENDPOINTS: Final = {
    ServerProtocol.V2: Endpoint.V2_INFER,
    ServerProtocol.V1: Endpoint.V1_PREDICT,
    ServerProtocol.OPENAI: Endpoint.EMBEDDINGS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """One protocol for one model."""

    probe: Probe
    protocol: BackendProtocol
    endpoint: Endpoint
    """What is asked there is batched."""
    ours: Adapter
    """Of the same protocol, for our own server; it words our errors."""

    routes: ForeignRoutes

    def adapter(self, path: str, query: str, headers: Mapping[str, str]) -> Adapter:
        """The way of one request. Its query goes on with it, and only with others of the same."""
        return ForeignAdapter(
            self.protocol,
            self.ours,
            path=f"{path}?{query}" if query else path,
            headers=forwarded(headers),
            trace=trace_context(headers),
        )


def foreign(
    protocol: ServerProtocol,
    name: str,
    replicated: Collection[str] = (),
    pass_paths: Collection[str] = (),
) -> Foreign:
    """The protocol for a model of this name; of its outputs, the `replicated` have no rows.

    `pass_paths`: what is passed on beside the protocol's own paths.
    """
    spoken: V2 | V1 | OpenAI
    match protocol:
        case ServerProtocol.V2:
            spoken = V2(name, replicated)
        case ServerProtocol.V1:
            spoken = V1(name)
        case ServerProtocol.OPENAI:
            spoken = OpenAI(name)
    endpoint = _ENDPOINTS[protocol]
    return Foreign(
        probe=spoken,
        protocol=spoken,
        endpoint=endpoint,
        ours=adapters()[endpoint],
        routes=ForeignRoutes(name, protocol, endpoint, pass_paths),
    )
