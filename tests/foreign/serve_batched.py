"""Run beside the packages of the environment `batched`: embeds texts in the library's batches.

Its arguments are the port and the folder of a model. It is the first example of the library's own
page in an endpoint of FastAPI, with the library's defaults: batches of 32, a wait of 5 ms.
"""

import sys

import batched
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

port, folder = sys.argv[1:]
app = FastAPI()
model = SentenceTransformer(folder, device="cpu")


class Asked(BaseModel):
    """The body of a request."""

    input: str


@batched.dynamically  # type: ignore[untyped-decorator]
def encode(texts: list[str]) -> list[list[float]]:
    """The embeddings of one batch."""
    rows: list[list[float]] = model.encode(texts).tolist()
    return rows


@app.get("/health")  # type: ignore[untyped-decorator]
def health() -> dict[str, bool]:
    """The model is loaded."""
    return {"ready": True}


@app.post("/embed")  # type: ignore[untyped-decorator]
async def embed(asked: Asked) -> dict[str, list[float]]:
    """The embedding of its text."""
    return {"embedding": await encode.acall(asked.input)}


uvicorn.run(app, host="127.0.0.1", port=int(port), access_log=False)
