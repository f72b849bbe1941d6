"""Which adapter speaks for which endpoint, in the sidecar's process and in its helper's."""

from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.protocols.classify import ClassifyAdapter
from batchedmodel_sidecar.protocols.openai import EmbeddingsAdapter
from batchedmodel_sidecar.protocols.rerank import RerankAdapter
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.v1 import PredictAdapter
from batchedmodel_sidecar.protocols.v2 import V2Adapter


def adapters() -> dict[Endpoint, Adapter]:
    """An adapter for every endpoint that takes calls."""
    return {
        Endpoint.V2_INFER: V2Adapter(),
        Endpoint.V1_PREDICT: PredictAdapter(),
        Endpoint.EMBEDDINGS: EmbeddingsAdapter(),
        Endpoint.CLASSIFY: ClassifyAdapter(),
        Endpoint.RERANK: RerankAdapter(),
    }
