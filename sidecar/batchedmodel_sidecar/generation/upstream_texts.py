"""Requests for text in front of a server of one's own: they go on as they came."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_scheduling.generation.admission import GenerationRequest
from batchedmodel_sidecar.backends.upstream.headers import passed_on
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.generation.engine_client import AnswerListener, Engine, Exchange
from batchedmodel_sidecar.generation.fields import fields_of
from batchedmodel_sidecar.generation.live_text import Draft
from batchedmodel_sidecar.generation.upstream_text import UpstreamText
from batchedmodel_sidecar.http.request import RequestHead

_CHAT: Final = "/chat/completions"
_BETWEEN_US: Final[Sequence[str]] = ("host", "expect", "content-length")


class UpstreamTexts:
    """A server that speaks OpenAI's protocol."""

    def __init__(self, client: Engine) -> None:
        self._client = client

    async def read(self, asked: RequestHead, body: Buffer, held: Hold) -> Draft:
        """See `TextServer`; it never waits."""
        fields = fields_of(body, readable=not asked.packed, chat=asked.path.endswith(_CHAT))

        def ask(listener: AnswerListener, request: GenerationRequest) -> Exchange:
            headers = passed_on(asked.headers.items(), _BETWEEN_US)
            return self._client.ask(listener, asked.path + asked.query, headers, (body,))

        return Draft(fields, partial(UpstreamText, ask))
