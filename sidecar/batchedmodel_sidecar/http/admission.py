"""Whether a request is taken, as far as that can be known before its body is read.

A refusal comes as early as it can be known: for the lifecycle and the queue before the body is
read, for the body's size before it is parsed.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import Share, TenantSettings, share_for, share_of
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.calls import Call
from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.errors import RETRY_SOON, Rejected
from batchedmodel_sidecar.http.body_reader import BodyReader, is_large
from batchedmodel_sidecar.http.request import HeaderOptions, Request, RequestHead, options_of
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.lora.served import ChosenAdapter, ServedAdapters
from batchedmodel_sidecar.model import Link, LinkStatus, ReadyModel
from batchedmodel_sidecar.protocols.headers import (
    BATCH_HEADER,
    declines_batching,
    limit_of,
    options_of_headers,
)
from batchedmodel_sidecar.protocols.routes import refuse_version

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Admission:
    """Lets the requests of one model in."""

    batcher: Batcher
    link: Link
    lifecycle: Lifecycle
    bodies: BodyReader
    codec: Codec
    adapters: ServedAdapters
    is_upstream: bool
    """The server is one of one's own."""
    passes_on: bool
    """It also gets single calls."""

    @property
    def timeout_seconds(self) -> float:
        """For a request that says nothing of its own."""
        return self.batcher.settings.request_timeout_seconds

    def limit(self, head: RequestHead) -> float:
        """Seconds that the headers of a request leave it; raises `InvalidInput`."""
        return limit_of(options_of_headers(head.headers), self.batcher.settings)

    def declines_batching(self, head: RequestHead) -> bool:
        """Whether a request is to go to an upstream server as it is; raises `InvalidInput`."""
        return self.passes_on and declines_batching(head.headers)

    @property
    def status(self) -> LinkStatus:
        """What is known of the model."""
        return self.link.status

    @property
    def works(self) -> bool:
        """Whether nothing but the model's absence keeps requests from being taken."""
        return self.batcher.closed is None and not self.lifecycle.draining

    @property
    def refusing(self) -> bool:
        """Whether a call that comes now is refused, as the model is away or the pod stops."""
        batcher = self.batcher
        return self.lifecycle.refusing or batcher.model is None or batcher.closed is not None

    @property
    def closing(self) -> bool:
        """Whether connections should end behind their answers: another pod may answer the next."""
        return self.lifecycle.draining or self.refusing

    def share(self, caller: str, headers: Mapping[str, str]) -> Share:
        """Whose part of the memory a request from this address uses."""
        return share_of(caller, headers, self.batcher.settings.tenants)

    def require_open(self) -> None:
        """Raise `Rejected` while the pod is stopping."""
        if not self.lifecycle.takes_calls():
            message = "this pod is stopping; another one will answer"
            raise Rejected(Rejection.DRAINING, message, retry_after=RETRY_SOON)

    def open_for_work(self) -> ReadyModel:
        """The model, if calls are taken and it is there; raises `Rejected`."""
        self.require_open()
        model = self.batcher.model
        if model is None:
            reason = self.link.status.reason
            raise Rejected(Rejection.NOT_READY, reason, retry_after=RETRY_SOON)
        if self.batcher.closed is not None:
            raise Rejected(Rejection.NOT_READY, self.batcher.closed, retry_after=RETRY_SOON)
        return model

    def model_of(self, request: Request) -> ReadyModel:
        """The model that answers a request at present; raises `Rejected`."""
        model = self.open_for_work()
        # Versions of an upstream server are its own business, and a part of the key.
        if request.match.version is not None and not self.is_upstream:
            refuse_version(request.match.version, model.description.version)
        return model

    def admit(self, request: Request, declared: int | None) -> ChosenAdapter | None:
        """Find the model of a request, and its adapter, if nothing forbids to read its body.

        Raises `Rejected`. `declared` is the body's size; None for one that is here.
        """
        request.model = self.model_of(request)
        # An adapter that is not served is refused before the body is read.
        chosen = self.adapter(request)
        share = request.hold.share
        if declared is not None:
            self.bodies.refuse_declared(declared, share)
            if is_large(declared, request.route.json_length):
                self.codec.refuse_large(share)
        refusal = self.batcher.refusal(share)
        if refusal is not None:
            raise refusal
        return chosen

    def adapter(self, request: Request, named: str | None = None) -> ChosenAdapter | None:
        """The adapter that path, headers or body (`named`) ask for; None for the model itself.

        Raises `InvalidInput` or `Rejected`.
        """
        return self.adapters.chosen(request.head.headers, request.match.adapter or named)

    def options(self, head: RequestHead) -> HeaderOptions:
        """What the headers ask for, read once for all requests that have the same head.

        Raises `InvalidInput`, and `Rejected` for an encoding that is not known.
        """
        if not self.passes_on and declines_batching(head.headers):
            raise InvalidInput(BATCH_HEADER, "is taken only in front of a foreign server", "off")
        head.header_options = options_of(head.headers, traced=logger.isEnabledFor(logging.DEBUG))
        return head.header_options


def share_of_call(call: Call, caller: Share, settings: TenantSettings) -> Share:
    """Whose part of the model a call uses, now that it is known what it asks for."""
    name = call.description.name if call.adapter is None else call.adapter.name
    return share_for(name, caller, settings)
