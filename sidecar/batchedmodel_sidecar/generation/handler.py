"""Requests for generated text: read, let in, sent to the server in their turn, counted.

`Admission` decides who goes next and how many at a time. This is the shell around it: it owns the
streams and one timer.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share, share_for
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.interfaces import Reply, Running
from batchedmodel_scheduling.core.policy import NEVER
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
    EngineView,
    GenerationRequest,
)
from batchedmodel_sidecar.batching import rejections
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import CallError, Rejected, TooLate, Unserved
from batchedmodel_sidecar.generation.request_reading import ENDED, RequestReading
from batchedmodel_sidecar.generation.stream import GenerationStream
from batchedmodel_sidecar.generation.text_server import Draft, TextServer
from batchedmodel_sidecar.http.refusals import Refusals, ours
from batchedmodel_sidecar.http.responses import named
from batchedmodel_sidecar.http.routed_head import RequestHead
from batchedmodel_sidecar.protocols.headers import agreed, options_of_headers
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts
from batchedmodel_sidecar.telemetry.generation_work import GenerationWork
from batchedmodel_sidecar.telemetry.ledger import Ledger, answered_rows, refused_rows

logger: Final = logging.getLogger(__name__)


class GenerationHandler:
    """Answers requests for generated text in front of one server."""

    def __init__(
        self,
        server: TextServer,
        settings: BatchSettings,
        *,
        ledger: Ledger,
        counts: GenerationCounts,
        refusals: Refusals,
        require_open: Callable[[], object],
    ) -> None:
        """Needs a running loop. `require_open` raises `Rejected` while no calls are taken."""
        self._server = server
        self._settings = settings
        self._limits: EngineLimits | None = None
        """Of an engine of ours, once there is one."""
        self._admission = Admission(AdmissionSettings.of(settings))
        self._ledger = ledger
        self.work: Final = GenerationWork(ledger, asyncio.get_running_loop().time())
        self._counts = counts
        self._refusals = refusals
        self._require_open = require_open
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, GenerationStream] = {}
        self._reading = 0
        """Requests that are being read."""
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

    def adapters(self) -> tuple[set[str], set[str]]:
        """Those of requests at the server, and those of requests that wait."""
        running: set[str] = set()
        waiting: set[str] = set()
        for stream in self._streams.values():
            if stream.request.adapter is not None:
                (waiting if stream.waits else running).add(stream.request.adapter)
        return running, waiting

    def begin(self, asked: RequestHead, body: Buffer, held: Hold, reply: Reply) -> Running:
        """Begin to answer a request whose body is here, and counted by `held`."""
        reading = RequestReading(asked, held, reply, self._loop.time(), self._left)
        self._reading += 1
        work = EagerCoroutine(
            self._read(reading, body), partial(self._was_read, reading), self._loop
        )
        if reading.running is not None:
            return reading.running
        late_at = reading.arrived + reading.limit
        reading.goes_on(work, self._loop.call_at(late_at, self._is_late, reading))
        self._idle.clear()
        return reading

    async def _read(self, reading: RequestReading, body: Buffer) -> Draft:
        self._require_open()
        reading.limit = self._settings.request_timeout_seconds
        timeout = options_of_headers(reading.asked.headers).timeout
        if timeout is not None:
            reading.limit = min(reading.limit, timeout)
        return await self._server.read(reading.asked, body, reading.held)

    def _was_read(
        self, reading: RequestReading, draft: Draft | None, error: BaseException | None
    ) -> None:
        asked, held, reply = reading.asked, reading.held, reading.reply
        reading.becomes(ENDED)
        self._reading -= 1
        try:
            if error is not None:
                raise error
            if draft is None:
                return  # its caller left, and was not told
            reading.running = self._accepted(reading, draft)
        except (CallError, InvalidInput) as known:
            self._refused(asked, held, reply, known)
        except BaseException as bug:
            told = Rejected(Rejection.INVALID, ours("reading", bug), status=500)
            self._refused(asked, held, reply, told)
        else:
            self._decide()
        self._look_whether_idle()

    def _is_late(self, reading: RequestReading) -> None:
        """The time of a request is over that is being read."""
        reading.drop()
        self._reading -= 1
        self._refused(reading.asked, reading.held, reading.reply, TooLate(reading.limit))
        self._look_whether_idle()

    def _left(self, reading: RequestReading) -> None:
        """The caller of a request left that was being read."""
        self._reading -= 1
        reading.held.release()
        self._ledger.rejected[Rejection.ABANDONED] += 1
        self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if not self._streams:
            self._busy.clear()
            if not self._reading:
                self._idle.set()

    def _refused(
        self, asked: RequestHead, held: Hold, reply: Reply, error: CallError | InvalidInput
    ) -> None:
        held.release()
        reply(named(self._refusals.response(asked, error), asked.request_id), None)

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
        self._reconfigure()

    def engine_is(self, limits: EngineLimits) -> None:
        """The engine behind it is one of ours, with such limits from now on."""
        is_first, self._limits = self._limits is None, limits
        if is_first:
            # Nothing was let in before: there was no model.
            self._admission = Admission(self._by())
        self._reconfigure()

    def _by(self) -> AdmissionSettings:
        return AdmissionSettings.of(self._settings, self._limits)

    def _reconfigure(self) -> None:
        self._admission.configure(self._by(), self._loop.time())
        self._decide()

    def open(self) -> None:
        """The server takes requests."""
        self._open = True
        self._decide()

    def close(self) -> None:
        """It takes none at present; what is there may still end."""
        self._open = False

    def step_ends(self) -> None:
        """Tokens of a step are told next, and then `engine` what it did: decide behind that."""
        self._deciding = True

    def preempted(self, count: int) -> None:
        """The engine has made so many sequences wait again since its start."""
        self._counts.preemptions = count

    def found(self, request_id: int, tokens: int) -> None:
        """The engine had so many tokens of a request's prompts in its cache."""
        self._counts.cached_tokens += tokens
        self._admission.found(request_id, tokens)

    def engine(self, view: EngineView) -> None:
        """What the server says of itself."""
        self._deciding = False
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
            answered_rows(self._ledger, request.share.tenant, request.adapter, 1)
            target = self._settings.target_first_token_seconds
            if target is not None and stream.first_at is not None:
                self._ledger.late += stream.first_at - request.arrived > target
        self._counts.ended(usage.prompt_tokens or request.prompt_tokens, usage.output_tokens)
        if outcome is Outcome.COMPLETED and stream.first_at is not None and usage.output_tokens > 1:
            took = stream.heard_at - stream.first_at
            self._counts.output_token.observe(took / (usage.output_tokens - 1))
        self._look_whether_idle()
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

    def _accepted(self, reading: RequestReading, draft: Draft) -> GenerationStream:
        self._require_open()
        now = self._loop.time()
        asked, held, arrived, limit = reading.asked, reading.held, reading.arrived, reading.limit
        terms = agreed(options_of_headers(asked.headers), self._settings)
        fields = draft.fields
        request = GenerationRequest(
            id=next(self._numbers),
            share=share_for(fields.model, held.share, self._settings.tenants),
            key=fields.model,
            prompt_tokens=fields.prompt_tokens,
            max_tokens=fields.max_tokens,
            choices=fields.choices,
            arrived=arrived,
            deadline=arrived + limit,
            streams=fields.streams,
            priority=terms.priority,
            group=terms.request_group,
            adapter=fields.adapter,
            at_once=fields.at_once,
            whole=fields.whole,
            least_tokens=fields.least_tokens,
        )
        work = self._admission.work(request)
        self.work.add(work, now)
        refusal = self._admission.offer(request, now)
        if refusal is not None:
            refused_rows(self._ledger, request.share.tenant, fields.adapter, 1)
            raise rejections.rejected(refusal, self._settings, limit)
        self._ledger.accept(1, work, now)
        stream = GenerationStream(self, draft.ask, request, asked, held, reading.reply, limit, work)
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
            self._admission = Admission(self._by())
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
