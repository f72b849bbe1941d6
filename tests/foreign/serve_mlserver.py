"""A runtime for MLServer, loaded by it in the environment `mlserver`: doubles each row.

A row that begins with a negative number is refused in a way that the number chooses.
"""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import MLServerError
from mlserver.types import InferenceRequest, InferenceResponse

REFUSED, BROKEN, A_ROW_TOO_FEW = -1, -2, -3


class Doubling(MLModel):  # type: ignore[misc]  # of another environment
    """What is asked of a row depends on that row alone."""

    async def load(self) -> bool:
        """There is nothing to load."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Twice the first input."""
        rows = NumpyCodec.decode_input(payload.inputs[0])
        firsts = rows[:, 0].tolist()
        if REFUSED in firsts:
            raise MLServerError("a row begins with -1", status_code=422)
        if BROKEN in firsts:
            raise RuntimeError("a row begins with -2")
        doubled = (rows + rows)[: len(rows) - (A_ROW_TOO_FEW in firsts)]
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            outputs=[NumpyCodec.encode_output("y", doubled)],
        )
