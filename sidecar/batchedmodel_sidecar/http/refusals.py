"""Errors as responses, each in the form that its caller expects, and counted."""

import logging
from collections.abc import Mapping
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.logs import about
from batchedmodel_http.response import Response
from batchedmodel_sidecar.batching.pending_request import invalid
from batchedmodel_sidecar.errors import CallError, Rejected, let_frames_go
from batchedmodel_sidecar.http.responses import error_response
from batchedmodel_sidecar.http.routed_head import RequestHead
from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)


class Refusals:
    """Makes and counts them."""

    def __init__(self, ledger: Ledger, adapters: Mapping[Endpoint, Adapter]) -> None:
        self._ledger = ledger
        self._adapters = adapters

    def response(self, asked: RequestHead, error: CallError | InvalidInput) -> Response:
        """What the caller is told. Nobody raises the error any more."""
        let_frames_go(error)
        if isinstance(error, InvalidInput):
            error = invalid(error)
        if isinstance(error, Rejected):
            self._ledger.rejected[error.reason] += 1
            # Not in the words that its caller reads, which may quote the body.
            if logger.isEnabledFor(logging.DEBUG):
                told = about(reason=error.reason)
                logger.debug("refused: %s, %d", error.reason, error.status, extra=told)
        adapter = asked.route.adapter if asked.route else None
        if adapter is None:
            # The path is no protocol's own: the error has the form that such callers expect.
            path = asked.path
            family = Endpoint.V1_PREDICT if path.endswith(":predict") else Endpoint.EMBEDDINGS
            adapter = self._adapters[family if path.startswith("/v1/") else Endpoint.V2_INFER]
        return error_response(error, adapter.error(error))


def ours(doing: str, bug: BaseException) -> str:
    """What a caller is told of an error of ours; the log has all of it."""
    logger.error("error while %s a call", doing, exc_info=bug)
    let_frames_go(bug)
    return f"error in the sidecar while {doing} this call: {type(bug).__name__}"
