"""HTTP answers of the data port beside those of the model: errors, each in its caller's form.

Who refuses a request makes them; the connections write them.
"""

import logging
import math
import random
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.processes.logs import about
from batchedmodel_http.response import Headers, Response
from batchedmodel_sidecar.batching.pending_request import invalid
from batchedmodel_sidecar.calls import Timing
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, Rejected, let_frames_go
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.protocols.headers import REQUEST_ID_HEADER
from batchedmodel_sidecar.protocols.protocol import PublicProtocol
from batchedmodel_sidecar.protocols.routes import Endpoint, NoRoute
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)

_OUTCOME_HEADER: Final = "x-request-outcome"
_BATCH_SIZE_HEADER: Final = "x-batch-size"
_QUEUE_TIME_HEADER: Final = "x-queue-time-ms"
_MODEL_TIME_HEADER: Final = "x-model-time-ms"
_RETRY_SPREAD: Final = 0.1  # callers who were refused together should not come back together


def timing_headers(timing: Timing) -> Headers:
    """For a caller that wants to know how it was served."""
    return (
        (_BATCH_SIZE_HEADER, str(timing.batch_size)),
        (_QUEUE_TIME_HEADER, f"{timing.queue_seconds * 1000:.3f}"),
        (_MODEL_TIME_HEADER, f"{timing.model_seconds * 1000:.3f}"),
    )


def named(response: Response, request_id: str | None) -> Response:
    """The response with the name that its caller gave the request."""
    return response if request_id is None else response.with_header(REQUEST_ID_HEADER, request_id)


class Refusals:
    """Makes errors into answers, and counts them."""

    def __init__(self, ledger: Ledger, protocols: Mapping[Endpoint, PublicProtocol]) -> None:
        self._ledger = ledger
        self._protocols = protocols

    def response(self, head: RequestHead, error: CallError | InvalidInput) -> Response:
        """What the caller is told. Nobody raises the error any more.

        It has its protocol's form, its reason and, where to try again helps, a delay.
        """
        let_frames_go(error)
        if isinstance(error, InvalidInput):
            error = invalid(error)
        if isinstance(error, Rejected):
            self._ledger.rejected[error.reason] += 1
            # Not in the words that its caller reads, which may quote the body.
            if logger.isEnabledFor(logging.DEBUG):
                told = about(reason=error.reason)
                logger.debug("refused: %s, %d", error.reason, error.status, extra=told)
        protocol = head.route.protocol if head.route else None
        if protocol is None:
            # The path is no protocol's own: the error has the form that such callers expect.
            path = head.path
            family = Endpoint.V1_PREDICT if path.endswith(":predict") else Endpoint.EMBEDDINGS
            protocol = self._protocols[family if path.startswith("/v1/") else Endpoint.V2_INFER]
        body = protocol.error(error)
        headers = body.headers
        if error.counted_as is not None:
            headers = (*headers, (_OUTCOME_HEADER, error.counted_as))
        if error.retry_after is not None:
            spread = random.uniform(1, 1 + _RETRY_SPREAD)
            headers = (
                *headers,
                ("Retry-After", str(max(1, math.ceil(error.retry_after)))),
                ("retry-after-ms", str(math.ceil(error.retry_after * spread * 1000))),
            )
        return Response((body.data,), body.content_type, error.status, headers)

    def lost(self, head: RequestHead, lost: NoRoute) -> Response:
        """The answer to a path that means nothing, or not with this method."""
        error = CallError(lost.message, status=lost.status)
        if head.method == "POST":
            error = Rejected(Rejection.INVALID, lost.message, status=lost.status)
        response = self.response(head, error)
        return response if lost.allow is None else response.with_header("Allow", lost.allow)

    def unreadable(self, status: int, rule: str) -> Response:
        """The answer to bytes that are no request, which break that rule of HTTP; 429: to one for
        which there is no room.
        """
        nowhere = RequestHead(method="", target="", headers={}, declared=0)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            full = Rejected(Rejection.QUEUE_FULL, rule, retry_after=RETRY_SOON)
            return self.response(nowhere, full)
        return self.response(nowhere, Rejected(Rejection.INVALID, rule, status=status))

    def abandoned(self) -> None:
        """Count a caller that left while its call was still arriving."""
        self._ledger.rejected[Rejection.ABANDONED] += 1


def unread_bug(bug: BaseException) -> Rejected:
    """An error of ours while a call was read, as its caller is told it."""
    return Rejected(Rejection.INVALID, ours("reading", bug), status=500)


def ours(doing: str, bug: BaseException) -> str:
    """What a caller is told of an error of ours; the log has all of it."""
    logger.error("error while %s a call", doing, exc_info=bug)
    let_frames_go(bug)
    return f"error in the sidecar while {doing} this call: {type(bug).__name__}"
