"""KServe's v1 protocol behind: instances in, predictions out.

Whatever a body holds beside its instances must be equal in calls that share a request. A body
without a list of instances (such as TensorFlow Serving's columnar `inputs`) goes alone, as it came.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.backends.upstream.protocol import (
    Ask,
    NotReady,
    ParsedRequest,
    Response,
    SplitReply,
)
from batchedmodel_sidecar.backends.upstream.protocols import json_rows
from batchedmodel_sidecar.backends.upstream.protocols.json_values import read
from batchedmodel_sidecar.calls import Answer, Output, Row, Value
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.protocols.protocol import Body

_INSTANCES: Final = "instances"
_PREDICTIONS: Final = "predictions"
_OUTPUTS: Final = (Output(_PREDICTIONS, Datatype.BYTES),)


class V1(json_rows.JsonRows):
    """`POST /v1/models/{name}:predict`."""

    rows_field = _INSTANCES
    platform = "v1"

    async def check_ready(self, ask: Ask) -> None:
        """A server that knows the model answers 200, and some say in the body that it is loading.

        Raises `NotReady`.
        """
        status, body = await ask(f"/v1/models/{self._name}")
        if status != 200:
            raise NotReady(f"the model answers {status} to the question for readiness")
        if _says_not_ready(body):
            raise NotReady("the model says that it is not ready")

    def parse(
        self, body: Buffer, header_length: str | None, most_rows: int
    ) -> ParsedRequest | None:
        """One row for each instance; raises `InvalidInput`."""
        given, write = read(body, of_request=True)
        instances = given.pop(_INSTANCES, None)
        if not isinstance(instances, list) or not instances:
            return None
        refuse_many(len(instances), most_rows)
        return json_rows.drafted(instances, given, write)

    def dealt(self, response: Response, rows: Sequence[Row], *, alone: bool) -> SplitReply:
        """One prediction for each row; raises `InvalidInput`."""
        given, write = read(response.body)
        predictions = given.pop(_PREDICTIONS, None)
        if not isinstance(predictions, list):
            raise InvalidInput(_PREDICTIONS, "is not an array")
        if len(predictions) != len(rows):
            rule = f"has {len(predictions)} entries for {len(rows)} instances"
            raise InvalidInput(_PREDICTIONS, rule)
        return SplitReply(
            outputs=_OUTPUTS,
            rows=[(Value((), write(prediction)),) for prediction in predictions],
            frame=json_rows.beside(given, write, alone=alone),
        )

    def render(self, memo: Any, answer: Answer) -> Body:
        """The predictions of the server."""
        predictions = [(row[0].data,) for row in answer.rows]
        frame = json_rows.in_common([reply.frame for reply in answer.replies])
        return json_rows.body_of(_PREDICTIONS, predictions, frame)


def _says_not_ready(body: bytes) -> bool:
    """KServe says `ready`, TensorFlow Serving `model_version_status`; others say nothing."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(document, dict):
        return False
    if str(document.get("ready", True)).lower() == "false":
        return True
    versions = document.get("model_version_status")
    if not isinstance(versions, list):
        return False
    return not any(isinstance(one, dict) and one.get("state") == "AVAILABLE" for one in versions)
