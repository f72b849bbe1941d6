"""Requests for generated text: read, let in, sent to the server in their turn, counted.

`Admission` decides who goes next and how many at a time. This is the shell around it: it owns the
streams and one timer.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_http.interfaces import Reply, Running
from batchedmodel_scheduling.core.policy import NEVER
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineView,
    GenerationRequest,
)
from batchedmodel_sidecar.batching import rejections
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import CallError, Rejected, Unserved
from batchedmodel_sidecar.generation.engine_client import Engine
from batchedmodel_sidecar.generation.fields import fields_of
from batchedmodel_sidecar.generation.stream import GenerationStream
from batchedmodel_sidecar.http.inference import ours
from batchedmodel_sidecar.http.refusals import Refusals
from batchedmodel_sidecar.http.responses import named
from batchedmodel_sidecar.http.routed_head import RequestHead
from batchedmodel_sidecar.protocols.headers import agreed, options_of_headers
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts
from batchedmodel_sidecar.telemetry.generation_work import GenerationWork
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)

_CHAT: Final = "/chat/completions"


class _Ended:
    """A request that has its answer."""

    def cancel(self) -> None:
        """Nothing is left of it."""


ENDED: Final = _Ended()


class GenerationHandler:
    """Answers requests for generated text in front of one server."""

    def __init__(
        self,
        client: Engine,
        settings: BatchSettings,
        *,
        ledger: Ledger,
        counts: GenerationCounts,
        refusals: Refusals,
        require_open: Callable[[], object],
    ) -> None:
        """Needs a running loop. `require_open` raises `Rejected` while no calls are taken."""
        self._client = client
        self._settings = settings
        self._admission = Admission(AdmissionSettings.of(settings))
        self._ledger = ledger
        self.work: Final = GenerationWork(ledger, asyncio.get_running_loop().time())
        self._counts = counts
        self._refusals = refusals
        self._require_open = require_open
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, GenerationStream] = {}
        self._numbers = count()
        self._open = False
        """Whether the server takes requests."""
        self._timer: asyncio.TimerHandle | None = None
        self._deciding = False
        self._changed = False
        self._idle, self._busy = asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def admission(self) -> Admission:
        """The policy, for metrics."""
        return self._admission

    def begin(self, asked: RequestHead, body: Buffer, held: Hold, reply: Reply) -> Running:
        """Begin to answer a request whose body is here, and counted by `held`."""
        try:
            stream = self._accepted(asked, body, held, reply)
        except (CallError, InvalidInput) as error:
            return self._refused(asked, held, reply, error)
        except Exception as bug:
            told = Rejected(Rejection.INVALID, ours("reading", bug), status=500)
            return self._refused(asked, held, reply, told)
        self._decide()
        return stream

    def _refused(
        self, asked: RequestHead, held: Hold, reply: Reply, error: CallError | InvalidInput
    ) -> Running:
        held.release()
        reply(named(self._refusals.response(asked, error), asked.request_id), None)
        return ENDED

    def refuse_full(self, share: Share) -> None:
        """Raise `Rejected` where a tenant's request would find no room, whatever it holds."""
        self._require_open()
        refusal = self._admission.refusal(share, self._loop.time())
        if refusal is not None:
            self.work.add_unseen(self._loop.time())
            raise rejections.rejected(refusal, self._settings)

    def stats(self, *, model_ready: bool, draining: bool) -> SidecarStats:
        """What the autoscaler is told."""
        return self.work.stats(
            self._settings,
            self._loop.time(),
            backlog=self._admission.backlog_work,
            at_once=self._admission.limit,
            model_ready=model_ready,
            draining=draining,
        )

    def oldest_age(self) -> float:
        """Seconds since the oldest request that waits came."""
        return self._admission.oldest_age(self._loop.time())

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        self._admission.configure(AdmissionSettings.of(settings), self._loop.time())
        self._decide()

    def open(self) -> None:
        """The server takes requests."""
        self._open = True
        self._decide()

    def close(self) -> None:
        """It takes none at present; what is there may still end."""
        self._open = False

    def engine(self, view: EngineView) -> None:
        """What the server says of itself."""
        now = self._loop.time()
        self._admission.engine(view, now)
        if view.cache_usage is not None:
            self.work.cache_used(view.cache_usage, now)
        self._counts.cache_usage = view.cache_usage
        self._decide()

    def give_up(self, reason: str, *, under_way: bool = True) -> None:
        """End what waits, and what is `under_way`: there is no time left for it."""
        for stream in list(self._streams.values()):
            if stream.waits or under_way:
                error = Unserved(reason, status=503, retry_after=1.0)
                stream.give_up(error, Outcome.FAILED)

    async def idle(self) -> None:
        """Return once nothing waits or is under way."""
        await self._idle.wait()

    async def busy(self) -> None:
        """Return once something waits or is under way."""
        await self._busy.wait()

    def heard(self, stream: GenerationStream, tokens: int, now: float) -> None:
        """Tokens came."""
        request = stream.request
        if stream.first_at is None:
            stream.first_at = now
            self._counts.first_token.observe(now - request.arrived)
            self._admission.first_token(request.id, now)
            tokens -= 1
            if self._admission.waiting:
                self._decide()  # what waited for this prompt to be read may go
        self._admission.tokens(request.id, tokens, now)

    def comes_back(self, stream: GenerationStream, rest_seconds: float) -> None:
        """The server did not begin with it."""
        now = self._loop.time()
        self._ledger.comes_back_alone(now)
        self._admission.came_back(stream.request.id, now, rest_seconds=rest_seconds)
        self._decide()

    def ended(self, stream: GenerationStream, outcome: Outcome, *, waited: bool) -> None:
        """A request is settled."""
        now, request, usage = self._loop.time(), stream.request, stream.usage
        del self._streams[request.id]
        self._ledger.settle_alone(outcome, stream.work, now, waiting=waited)
        if outcome is Outcome.COMPLETED:
            self._ledger.tenants.served(request.share.tenant, 1)
        self._counts.ended(usage.prompt_tokens or request.prompt_tokens, usage.output_tokens)
        if outcome is Outcome.COMPLETED and stream.first_at is not None and usage.output_tokens > 1:
            took = stream.heard_at - stream.first_at
            self._counts.output_token.observe(took / (usage.output_tokens - 1))
        if not self._streams:
            self._idle.set()
            self._busy.clear()
        if waited:
            self._admission.withdraw(request.id, now)
        else:
            whole = outcome is Outcome.COMPLETED and usage.output_tokens > 0
            self._admission.ended(
                request.id, now, output_tokens=usage.output_tokens if whole else None
            )
        self._decide()

    def told(self, stream: GenerationStream, error: CallError) -> None:
        """Answer a request with an error."""
        response = self._refusals.response(stream.asked, error)
        stream.take_reply()(named(response, stream.asked.request_id), None)

    def _accepted(
        self, asked: RequestHead, body: Buffer, held: Hold, reply: Reply
    ) -> GenerationStream:
        self._require_open()
        now = self._loop.time()
        options = options_of_headers(asked.headers)
        terms = agreed(options, self._settings)
        limit = self._settings.request_timeout_seconds
        limit = limit if options.timeout is None else min(limit, options.timeout)
        fields = fields_of(body, readable=not asked.packed, chat=asked.path.endswith(_CHAT))
        request = GenerationRequest(
            id=next(self._numbers),
            share=held.share,
            key=fields.model,
            prompt_tokens=fields.prompt_tokens,
            max_tokens=fields.max_tokens,
            choices=fields.choices,
            arrived=now,
            deadline=now + limit,
            streams=fields.streams,
            priority=terms.priority,
            group=terms.request_group,
        )
        work = self._admission.work(request)
        self.work.add(work, now)
        refusal = self._admission.offer(request, now)
        if refusal is not None:
            self._ledger.tenants.refused(held.share.tenant, 1)
            raise rejections.rejected(refusal, self._settings, limit)
        self._ledger.accept(1, work, now)
        stream = GenerationStream(
            self, self._client, request, asked, (body,), held, reply, limit, work
        )
        self._streams[request.id] = stream
        self._idle.clear()
        self._busy.set()
        return stream

    def _decide(self) -> None:
        """Let go what may, and give up what is too late."""
        self._changed = True
        if self._deciding:
            return  # what is let go now may end at once; it is looked at below
        self._deciding = True
        try:
            while self._changed:
                self._changed = False
                self._decide_once()
        except Exception as bug:
            # Our bug. Who waits must not wait for ever, and the others go on.
            message = ours("deciding about", bug)
            self._admission = Admission(AdmissionSettings.of(self._settings))
            error = Unserved(message, status=500)
            for stream in [one for one in self._streams.values() if one.waits]:
                stream.give_up(error, Outcome.FAILED)
        finally:
            self._deciding = False

    def _decide_once(self) -> None:
        now = self._loop.time()
        grant = self._admission.poll(now, is_open=self._open)
        for shed in grant.shed:
            stream = self._streams[shed.request_id]
            seconds = stream.request.deadline - stream.request.arrived
            error = rejections.ended(shed.outcome, seconds=seconds, retry_after=1.0)
            stream.give_up(error, shed.outcome)
        for number in grant.release:
            stream = self._streams[number]
            self._ledger.leaves_alone(now)
            self._counts.queued.observe(now - stream.request.arrived)
            stream.go()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if grant.wake_at != NEVER:
            self._timer = self._loop.call_at(grant.wake_at, self._decide)
