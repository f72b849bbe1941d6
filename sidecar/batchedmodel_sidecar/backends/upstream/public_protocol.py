"""A request's way through a server's protocol, as one of the public protocols."""

from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_sidecar.backends.upstream.headers import Headers, common
from batchedmodel_sidecar.backends.upstream.protocol import (
    BackendProtocol,
    Envelope,
    ParsedRequest,
    digest_of,
    drafted,
)
from batchedmodel_sidecar.calls import Answer, Call
from batchedmodel_sidecar.errors import CallError, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol


class UpstreamProtocol(PublicProtocol):
    """One request's."""

    def __init__(
        self,
        protocol: BackendProtocol,
        ours: PublicProtocol,
        *,
        path: str,
        headers: Headers,
        trace: Headers = (),
    ) -> None:
        """`ours` words our own errors in the same protocol; `headers` are those to forward.

        `trace` are those that go with the request where it shares none.
        """
        self.protocol: Final = protocol
        self._ours = ours
        self._path = path
        self._headers = headers
        self._trace = trace

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """The call with the rows that the body holds; raises `InvalidInput` or `Rejected`."""
        return self.parsed(drafted(self.protocol, body, header_length, most_rows), model)

    def parsed(self, draft: ParsedRequest, model: ReadyModel) -> Parsed:
        """The call of what a body asks, wherever it was read."""
        envelope = Envelope(path=self._path, headers=self._headers, frame=draft.frame)
        call = Call(
            rows=draft.rows,
            description=model.description,
            key=digest_of(self._path, self._headers, draft.digest),
            envelope=envelope,
            trace=self._trace,
        )
        return Parsed(call=call, memo=draft.memo, options=draft.options)

    def texts(self, parsed: Parsed, answer: Answer) -> int:
        """See `BackendProtocol`: most came as text and stays it."""
        return self.protocol.texts(parsed.memo, answer)

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The server's answer to this caller, with the headers that may pass."""
        return self.addressed(self.protocol.render(parsed.memo, answer), answer)

    def addressed(self, body: Body, answer: Answer) -> Body:
        """A body, wherever it was made, with the headers of the server that may pass."""
        headers = common(reply.headers for reply in answer.replies)
        return Body(body.data, body.tail, body.content_type, (*headers, *body.headers))

    def error(self, error: CallError) -> Body:
        """What the server said, if it was the server; or else the protocol's own form."""
        if isinstance(error, Unserved) and error.reply is not None:
            reply = error.reply
            return Body(data=reply.body, content_type=reply.content_type, headers=reply.headers)
        return self._ours.error(error)
