"""Run beside the packages of the environment `fastapi`: embeds one text a request.

Its arguments are the port and the folder of a model. It is what one writes first: sentence-
transformers in an endpoint that is no coroutine, which FastAPI runs in one of its threads.
"""

import sys

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


@app.get("/health")  # type: ignore[untyped-decorator]
def health() -> dict[str, bool]:
    """The model is loaded."""
    return {"ready": True}


@app.post("/embed")  # type: ignore[untyped-decorator]
def embed(asked: Asked) -> dict[str, list[float]]:
    """The embedding of its text."""
    return {"embedding": model.encode(asked.input).tolist()}


uvicorn.run(app, host="127.0.0.1", port=int(port), access_log=False)
