"""The way of a request for generated text: read, prepared, admitted, answered."""

import asyncio
from collections.abc import Callable
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import CallError, TooLate
from batchedmodel_sidecar.generation.live_text import Answer, LiveText, TextServer
from batchedmodel_sidecar.generation.text_queue import TextQueue
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.http.responses import Refusals, named, unread_bug
from batchedmodel_sidecar.http.time_out import within
from batchedmodel_sidecar.protocols.headers import options_of_headers
from batchedmodel_sidecar.telemetry.ledger import Ledger


class GenerationHandler:
    """Answers requests for generated text in front of one server."""

    def __init__(
        self,
        server: TextServer,
        queue: TextQueue,
        settings: BatchSettings,
        *,
        ledger: Ledger,
        refusals: Refusals,
        require_open: Callable[[], object],
    ) -> None:
        """`require_open` raises `Rejected` while no calls are taken."""
        self._server = server
        self.queue: Final = queue
        self._settings = settings
        self._ledger = ledger
        self._refusals = refusals
        self._require_open = require_open
        self._loop = asyncio.get_running_loop()

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        self.queue.configure(settings)

    def refuse_full(self, share: Share) -> None:
        """Raise `Rejected` where a tenant's request would not be admitted, whatever it holds."""
        self._require_open()
        self.queue.refuse_full(share)

    async def answer(self, asked: RequestHead, body: Buffer, held: Hold) -> Answer:
        """The answer to a request whose body is here, and counted by `held`; or its beginning.

        Cancelled when its caller leaves before that. Needs no task.
        """
        try:
            text = await self._admitted(asked, body, held)
        except (CallError, InvalidInput) as error:
            return self._refused(asked, held, error)
        except asyncio.CancelledError:
            held.release()
            self._ledger.rejected[Rejection.ABANDONED] += 1
            raise
        except GeneratorExit:
            raise
        except BaseException as bug:
            return self._refused(asked, held, unread_bug(bug))
        try:
            return await text.answer
        except asyncio.CancelledError:
            text.cancel()
            raise
        except CallError as error:
            return self._refused(asked, held, error)

    async def _admitted(self, asked: RequestHead, body: Buffer, held: Hold) -> LiveText:
        self.queue.reading_begins()
        try:
            arrived = self._loop.time()
            self._require_open()
            limit = self._settings.request_timeout_seconds
            timeout = options_of_headers(asked.headers).timeout
            if timeout is not None:
                limit = min(limit, timeout)
            try:
                draft, waited = await within(limit, self._server.read(asked, body, held))
            except TimeoutError:
                raise TooLate(limit) from None
            if waited:
                self._require_open()
            return self.queue.admit(draft, asked, held, arrived, limit)
        finally:
            self.queue.reading_ends()

    def _refused(self, asked: RequestHead, held: Hold, error: CallError | InvalidInput) -> Answer:
        held.release()
        return named(self._refusals.response(asked, error), asked.request_id)


MakeHandler = Callable[[TextServer], GenerationHandler]
