"""Run beside the packages of the environment `litserve`: embeds texts in LitServe's batches.

Its arguments are the port and the folder of a model. LitServe batches only where it is told how
large a batch may be: 32, as it is by default in the other servers. Without a wait its idle worker
spins, so it has 10 ms. All else is its default.
"""

import sys
from typing import Any

import litserve
from sentence_transformers import SentenceTransformer

port, folder = sys.argv[1:]


class Embeddings(litserve.LitAPI):  # type: ignore[misc]  # of another environment
    """One text a request."""

    def setup(self, device: str) -> None:
        """Load the model."""
        self.model = SentenceTransformer(folder, device=device)

    def decode_request(self, request: dict[str, Any]) -> str:
        """The text of a request."""
        text: str = request["input"]
        return text

    def predict(self, texts: list[str]) -> Any:
        """The embeddings of one batch."""
        return self.model.encode(list(texts))

    def encode_response(self, output: Any) -> dict[str, list[float]]:
        """The answer to one request."""
        return {"embedding": output.tolist()}


if __name__ == "__main__":
    batched = Embeddings(max_batch_size=32, batch_timeout=0.01)
    server = litserve.LitServer(batched, accelerator="cpu")
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False)
