"""Who answers requests for generated text: a server of one's own, or the engine of ours."""

from typing import NamedTuple, Protocol

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.generation.fields import Fields
from batchedmodel_sidecar.generation.stream import Ask
from batchedmodel_sidecar.http.routed_head import RequestHead


class Draft(NamedTuple):
    """A request that was read."""

    fields: Fields
    ask: Ask


class TextServer(Protocol):
    """What it is asked before a request is queued."""

    async def read(self, asked: RequestHead, body: Buffer, held: Hold) -> Draft:
        """What a body asks; raises `CallError` or `InvalidInput`."""
        ...
