"""Whether a request is taken, as far as that can be known before its body is read.

A refusal comes as early as it can be known: for the lifecycle and the queue before the body is
read, for the body's size before it is parsed.
"""

import logging
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import LARGE
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.errors import RETRY_SOON, Rejected
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.responses import other_version
from batchedmodel_sidecar.http.routed_head import HeaderOptions, Request, RequestHead, options_of
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.lora.naming import AdapterNames
from batchedmodel_sidecar.model import Link, ReadyModel
from batchedmodel_sidecar.protocols.headers import BATCH_HEADER, declines_batching

logger: Final = logging.getLogger(__name__)


class Admission:
    """Lets the requests of one model in."""

    def __init__(
        self,
        *,
        batcher: Batcher,
        link: Link,
        lifecycle: Lifecycle,
        bodies: BodyReader,
        codec: Codec,
        adapters: AdapterNames,
        is_upstream: bool,
        passes_on: bool,
    ) -> None:
        """`is_upstream`: the server is one of one's own. `passes_on`: it also gets single calls."""
        self._batcher = batcher
        self._link = link
        self._lifecycle = lifecycle
        self._bodies = bodies
        self._codec = codec
        self._adapters = adapters
        self._is_upstream = is_upstream
        self.passes_on: Final = passes_on

    def require_open(self) -> None:
        """Raise `Rejected` while the pod is stopping."""
        if not self._lifecycle.takes_calls():
            message = "this pod is stopping; another one will answer"
            raise Rejected(Rejection.DRAINING, message, retry_after=RETRY_SOON)

    def open_for_work(self) -> ReadyModel:
        """The model, if calls are taken and it is there; raises `Rejected`."""
        self.require_open()
        model = self._batcher.model
        if model is None:
            reason = self._link.status.reason
            raise Rejected(Rejection.NOT_READY, reason, retry_after=RETRY_SOON)
        if self._batcher.closed is not None:
            raise Rejected(Rejection.NOT_READY, self._batcher.closed, retry_after=RETRY_SOON)
        return model

    def model_of(self, request: Request) -> ReadyModel:
        """The model that answers a request at present; raises `Rejected`."""
        model, version = self.open_for_work(), request.found.version
        # Versions of an upstream server are its own business, and a part of the key.
        if version is not None and not self._is_upstream:
            other = other_version(version, model)
            if other is not None:
                raise other
        return model

    def admit(self, request: Request, head_length: str | None, declared: int | None) -> None:
        """Find the model of a request, if nothing forbids to read its body; raises `Rejected`.

        `head_length`: see `Request`. `declared` is the body's size; None for one that is here.
        """
        request.model = self.model_of(request)
        # An adapter that is not served is refused before the body is read.
        self._adapters.chosen(request.asked.headers, request.found.adapter)
        share = request.held.share
        if declared is not None:
            self._bodies.refuse_declared(declared, share)
            if json_bytes(declared, head_length) > LARGE:
                self._codec.refuse_large(share)
        refusal = self._batcher.refusal(share)
        if refusal is not None:
            raise refusal

    def options(self, asked: RequestHead) -> HeaderOptions:
        """What the headers ask for, read once for all requests that have the same head.

        Raises `InvalidInput`, and `Rejected` for an encoding that is not known.
        """
        if not self.passes_on and declines_batching(asked.headers):
            raise InvalidInput(BATCH_HEADER, "is taken only in front of a foreign server", "off")
        asked.header_options = options_of(asked.headers, traced=logger.isEnabledFor(logging.DEBUG))
        return asked.header_options
