"""Which protocol belongs to which endpoint, in the sidecar's process and in its helper's."""

from batchedmodel_sidecar.protocols.openai import EmbeddingsProtocol
from batchedmodel_sidecar.protocols.protocol import PublicProtocol
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.scores import ClassifyProtocol, RerankProtocol
from batchedmodel_sidecar.protocols.v1 import PredictProtocol
from batchedmodel_sidecar.protocols.v2 import V2Protocol


def public_protocols() -> dict[Endpoint, PublicProtocol]:
    """A protocol for every endpoint that takes calls."""
    return {
        Endpoint.V2_INFER: V2Protocol(),
        Endpoint.V1_PREDICT: PredictProtocol(),
        Endpoint.EMBEDDINGS: EmbeddingsProtocol(),
        Endpoint.CLASSIFY: ClassifyProtocol(),
        Endpoint.RERANK: RerankProtocol(),
    }
