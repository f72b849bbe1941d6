"""What can be asked about the server and its model, in the words of each protocol. Pure.

Called by the data handler. Nothing here is a call, so nothing here is counted.
"""

from importlib import metadata
from typing import Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_http.response import Response
from batchedmodel_sidecar.backends.base import LinkStatus
from batchedmodel_sidecar.errors import CallError, ModelNotFound
from batchedmodel_sidecar.http.responses import json_response
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols import openai, v2
from batchedmodel_sidecar.protocols.routes import Endpoint, Found

RETRY_NOT_READY: Final = 1.0
VERSION: Final = metadata.version("batchedmodel")


def told(name: str, found: Found, status: LinkStatus, *, open_for_work: bool) -> Response:
    """The answer about the server, or about the one model of this name; raises `CallError`.

    `open_for_work`: whether nothing but the model's absence keeps requests from being taken.
    """
    ready = open_for_work and status.model is not None
    code = 200 if ready else 503
    match found.endpoint:
        case Endpoint.SERVER:
            return json_response(v2.server_metadata(VERSION))
        case Endpoint.LIVE:
            return json_response({"live": True})
        case Endpoint.READY:
            return json_response({"ready": ready}, code)
    other = other_version(found.version, status.model)
    if other is not None:
        raise other
    if found.endpoint is Endpoint.MODEL_READY:
        return json_response({"name": name, "ready": ready}, code)
    if status.model is None:
        raise CallError(status.reason, status=503, retry_after=RETRY_NOT_READY)
    match found.endpoint:
        case Endpoint.V2_MODEL:
            return json_response(v2.metadata(status.model))
        case Endpoint.MODEL:
            return json_response(openai.about_model(status.model))
    return json_response(openai.models(status.model))


def other_version(version: str | None, model: ReadyModel | None) -> ModelNotFound | None:
    """What is told who names another version of the model than the one that is served."""
    served = version if model is None else model.description.version
    if version in (None, served):
        return None
    return ModelNotFound(f"version: {shown(version)} is not served here; {served} is")
