"""Run by the Python of the environment `kserve`: KServe's own server, with a model of the test's.

Its arguments are the port and `v1`, `v2` or `binary`. KServe's server takes and gives binary
tensors but does not say so in its metadata; for `binary` it is made to.
"""

import sys
from typing import Any

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.errors import InvalidInput
from kserve.protocol.dataplane import DataPlane

REFUSED, BROKEN = -1, -2


class Rows(Model):  # type: ignore[misc]  # of another environment
    """What is asked of a row depends on that row alone."""

    def load(self) -> bool:
        """There is nothing to load."""
        self.ready = True
        return True

    def predict(self, payload: Any, headers: Any = None, **_: Any) -> Any:
        """Each instance under `got`; each v2 row twice."""
        if isinstance(payload, InferRequest):
            return self._doubled(payload)
        instances = payload["instances"]
        judge(instances)
        answer: dict[str, Any] = {"predictions": [{"got": one} for one in instances]}
        if "scale" in payload:
            answer["scale"] = payload["scale"]
        return answer

    def _doubled(self, request: InferRequest) -> InferResponse:
        given = request.inputs[0]
        rows = given.as_numpy()
        judge(rows[:, 0].tolist())
        output = InferOutput(name="y", shape=list(rows.shape), datatype=given.datatype)
        output.set_data_from_numpy(rows + rows, binary_data="binary" in sys.argv)
        return InferResponse(
            response_id=request.id or "", model_name=self.name, infer_outputs=[output]
        )


def judge(firsts: list[Any]) -> None:
    if REFUSED in firsts:
        raise InvalidInput("a row begins with -1")
    if BROKEN in firsts:
        raise RuntimeError("a row begins with -2")


if "binary" in sys.argv:
    told = DataPlane.metadata

    def telling(self: DataPlane) -> dict[str, Any]:
        """What the server says of itself, and what it leaves out."""
        document: dict[str, Any] = told(self)
        return {**document, "extensions": [*document["extensions"], "binary_tensor_data"]}

    DataPlane.metadata = telling

model = Rows("m")
model.load()
ModelServer(http_port=int(sys.argv[1]), enable_grpc=False).start([model])
