"""The helper processes that prepare requests for text.

A large body takes seconds, so those have a process of their own, and small ones never wait for it.
"""

import time
from functools import partial
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.generation.native.requests.preparer import (
    TextPreparer,
    bounded_preparer,
    prepare,
)
from batchedmodel_sidecar.generation.native.requests.text_request import TextEndpoint, TextRequest
from batchedmodel_sidecar.helper.client import HelperClient
from batchedmodel_sidecar.helper.messages import Pickled

_PLACES: Final = 1024
_LARGE_BYTES: Final = 32 * 1024  # which take about 20 ms
_SMALL_AT_ONCE: Final = 2
"""So that the process has the next one when it has answered."""
_STUCK_SECONDS: Final = 20.0
"""A body that takes longer hangs: a template is ended by itself after a second of CPU."""


class Preparing:
    """Prepares requests in one process, and large ones in another, which starts when needed."""

    def __init__(self, stuck_seconds: float = _STUCK_SECONDS) -> None:
        """Starts nothing yet."""
        helper = partial(
            HelperClient,
            "requests for text",
            prepare.__module__,
            time.monotonic,
            places=_PLACES,
            stuck_seconds=stuck_seconds,
        )
        self._small = helper(at_once=_SMALL_AT_ONCE)
        self._large = helper()

    def begin(self) -> None:
        """Have the process for small bodies there before the first one."""
        self._small.begin()

    async def prepare(
        self, texts: TextPreparer, endpoint: TextEndpoint, body: Buffer, share: Share
    ) -> TextRequest:
        """The request in a body; raises `InvalidInput` and `Rejected`."""
        helper = self._large if len(body) > _LARGE_BYTES else self._small
        helper.check_place(share)
        model = Pickled(bounded_preparer, (texts.name, texts.description, texts.tokenizer_json))
        request: TextRequest
        request, _ = await helper.do(partial(prepare, endpoint), body, model, share=share)
        return request

    async def close(self) -> None:
        """End the processes; what is with them fails."""
        await self._small.close()
        await self._large.close()
