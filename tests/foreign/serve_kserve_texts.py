"""Run beside the packages of the environment `kserve`: embeds the texts that its agent batches.

Its arguments are the agent's program, its port, the port of KServe's own server behind it, and the
folder of a model. Both run as in a pod, the agent with its batcher's defaults: 32 instances, or a
wait of five seconds.
"""

import os
import subprocess
import sys
from typing import Any

from kserve import Model, ModelServer
from sentence_transformers import SentenceTransformer

agent, port, own_port, folder = sys.argv[1:]
sys.argv[1:] = []  # which KServe reads as well


class Embeddings(Model):  # type: ignore[misc]  # of another environment
    """Each instance is one text."""

    def load(self) -> bool:
        """Load the model."""
        self.model = SentenceTransformer(folder, device="cpu")
        self.ready = True
        return True

    def predict(self, payload: Any, headers: Any = None, **_: Any) -> Any:
        """The embeddings of one batch."""
        return {"predictions": self.model.encode(payload["instances"]).tolist()}


model = Embeddings("m")
model.load()
with subprocess.Popen(
    [agent, "--port", port, "--component-port", own_port, "--enable-batcher"],
    env={**os.environ, "SERVING_READINESS_PROBE": ""},
):
    ModelServer(http_port=int(own_port), enable_grpc=False).start([model])
