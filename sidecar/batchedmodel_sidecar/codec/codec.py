"""Bodies into calls and answers into bodies: here when they are small, in the helper when not.

`http/inference` calls it, and the link to an upstream server for that server's answers. The helper
uses the same protocols, so calls and errors are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_http.response import LARGE
from batchedmodel_sidecar.backends.upstream.protocol import (
    BackendProtocol,
    Response,
    SplitReply,
)
from batchedmodel_sidecar.backends.upstream.public_protocol import UpstreamProtocol
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.calls import Answer, Row
from batchedmodel_sidecar.codec.jobs import (
    By,
    Kept,
    deal,
    parse,
    pickled_answer,
    pickled_model,
    render,
)
from batchedmodel_sidecar.helper.client import HelperClient
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.table import public_protocols

LARGE_ANSWER: Final = 64 * 1024
"""Bytes of tensors that become about four times as many of JSON, and two milliseconds."""
_SMALL_ANSWER: Final = 4 * 1024  # sooner made than it is found out how much of it is JSON

MOST_BODIES: Final = 16
"""Bodies that wait for the helper or are in it; more are refused."""


def body_helper(hold: Hold | None = None) -> HelperClient:
    """The helper for large bodies. `hold` lends the memory that answers take."""
    return HelperClient("large bodies", parse.__module__, places=MOST_BODIES, hold=hold)


class Codec:
    """Knows every protocol, and which process does the work."""

    def __init__(self, helper: HelperClient, *, most_rows: Callable[[Share], int]) -> None:
        """`most_rows`: how many rows of one call are taken of a tenant at present, at most."""
        self.protocols: Final = public_protocols()
        self._endpoints = {type(one): endpoint for endpoint, one in self.protocols.items()}
        self._helper = helper
        self.most_rows: Final = most_rows

    def refuse_large(self, share: Share) -> None:
        """Raise `Rejected` when the helper has no place for one more body."""
        self._helper.check_place(share)

    async def parse(
        self,
        protocol: PublicProtocol,
        body: Buffer | SharedMemory,
        header_length: str | None,
        model: ReadyModel,
        hold: Hold,
    ) -> Parsed:
        """The call in a body; raises `InvalidInput` or `Rejected`.

        More rows than may wait now are `TOO_LARGE`, also where there may be room for them later.
        Much memory that the values of a large one take meanwhile is charged to `hold`.
        """
        share = hold.share
        upstream = protocol if isinstance(protocol, UpstreamProtocol) else None
        if not isinstance(body, SharedMemory):
            size = json_bytes(len(body), header_length)
            if upstream is not None:
                # Binary data that the server must be sent as JSON.
                size = max(size, upstream.protocol.converts(len(body), header_length))
            if size <= LARGE:
                known = model.asked_by(share, len(body))
                return await protocol.parse(body, header_length, known, self.most_rows(share))
        self.refuse_large(share)
        job = partial(parse, self._by(protocol), header_length, self.most_rows(share))
        pickled = None if upstream else pickled_model(model)
        draft, size = await self._helper.do(job, body, pickled, share=share, hold=hold)
        if upstream:
            return upstream.parsed(draft, model)
        call = model.call_of(draft.rows, draft.params)
        # What is remembered beside the rows lies there with them.
        return Parsed(call, draft.memo, draft.options, size, draft.named)

    def renders_here(
        self, protocol: PublicProtocol, parsed: Parsed, answer: Answer, size: int
    ) -> bool:
        """Whether this process makes the body that answers a call, because it is small.

        `size`: that of the answer.
        """
        return not _is_kept(parsed, answer) and (
            size <= _SMALL_ANSWER or protocol.texts(parsed, answer) <= LARGE_ANSWER
        )

    async def render(
        self,
        protocol: PublicProtocol,
        parsed: Parsed,
        answer: Answer,
        model: ReadyModel,
        share: Share = NOBODY,
    ) -> Body:
        """The body that answers a call; raises `InvalidInput` or `Unserved`."""
        if self.renders_here(protocol, parsed, answer, answer.size):
            return protocol.render(parsed, answer, model)
        upstream = protocol if isinstance(protocol, UpstreamProtocol) else None
        by, lengths, theirs = self._by(protocol), parsed.call.lengths, pickled_answer(answer)
        job = partial(render, by, lengths, theirs, parsed.memo, parsed.named, parsed.labels)
        pickled = None if upstream else pickled_model(model)
        body, _ = await self._helper.do(job, b"", pickled, share=share, is_answer=True)
        return upstream.addressed(body, answer) if upstream else body

    async def dealt(
        self, protocol: BackendProtocol, response: Response, rows: Sequence[Row], alone: bool
    ) -> SplitReply:
        """The answers in an upstream server's response; raises `InvalidInput` or `Unserved`."""
        memory = response.memory
        if memory is None:
            return protocol.dealt(response, rows, alone=alone)
        try:
            lengths, plain = [row.length for row in rows], replace(response, body=b"", memory=None)
            job = partial(deal, protocol, plain, lengths, alone)
            # Of an answer to several callers none is refused for what another's part of it takes.
            dealt: SplitReply
            dealt, _ = await self._helper.do(job, memory, is_answer=True, must=True)
            return dealt
        finally:
            memory.close()

    def _by(self, protocol: PublicProtocol) -> By:
        """How the helper is told of the protocol."""
        if isinstance(protocol, UpstreamProtocol):
            return protocol.protocol
        return self._endpoints[type(protocol)]


def _is_kept(parsed: Parsed, answer: Answer) -> bool:
    """Whether only the helper can read a part of the question or of the answer."""
    if isinstance(parsed.memo, Kept):
        return True
    return bool(answer.replies) and any(isinstance(reply.frame, Kept) for reply in answer.replies)
