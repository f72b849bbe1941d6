"""The way of a request for generated text: read, admitted, sent to the server, answered.

`Admission` decides who goes next. This is the shell around it: it owns the texts that wait and
those that the server has, one timer, and the counts.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from math import isfinite
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share, share_for
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
    EngineView,
    GenerationRequest,
)
from batchedmodel_sidecar.batching.pending_request import ended, rejected
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import CallError, TooLate, Unserved
from batchedmodel_sidecar.generation.live_text import Admitted, Answer, Draft, LiveText, TextServer
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.http.responses import Refusals, named, ours, unread_bug
from batchedmodel_sidecar.http.time_out import within
from batchedmodel_sidecar.protocols.headers import agreed, options_of_headers
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts


class TextQueue:
    """The texts in front of one server and at it."""

    server: TextServer
    """Set once, before the first request."""

    def __init__(
        self,
        settings: BatchSettings,
        counts: GenerationCounts,
        refusals: Refusals,
        require_open: Callable[[], object],
    ) -> None:
        """Needs a running loop. `require_open` raises `Rejected` while no calls are taken."""
        self.settings = settings
        self._refusals = refusals
        self._require_open = require_open
        self._limits: EngineLimits | None = None
        """Of an engine of ours, once there is one."""
        self.admission = Admission(AdmissionSettings.of(settings))
        """The policy; another one once the engine's limits are known."""
        self.counts: Final = counts
        self._ledger = counts.ledger
        self._loop = asyncio.get_running_loop()
        self._texts: dict[int, LiveText] = {}
        self._numbers = count()
        self._open = False
        """Whether the server takes requests."""
        self._timer: asyncio.TimerHandle | None = None
        self._deciding = False
        self._changed = False
        self._reading = 0
        """Requests that are being read."""
        self._idle, self._busy = asyncio.Event(), asyncio.Event()
        self._idle.set()

    def adapters(self) -> tuple[set[str], set[str]]:
        """Those of requests at the server, and those of requests that wait."""
        running: set[str] = set()
        waiting: set[str] = set()
        for text in self._texts.values():
            if text.request.adapter is not None:
                (waiting if text.waits else running).add(text.request.adapter)
        return running, waiting

    def refuse_full(self, share: Share) -> None:
        """Raise `Rejected` where a tenant's request would not be admitted, whatever it holds."""
        self._require_open()
        now = self._loop.time()
        refusal = self.admission.refusal(share, now)
        if refusal is not None:
            self.counts.refused_unread(now)
            raise rejected(refusal, self.settings)

    async def answer(self, head: RequestHead, body: Buffer, hold: Hold) -> Answer:
        """The answer to a request whose body is here, and counted by `hold`; or its beginning.

        Cancelled when its caller leaves before that. Needs no task.
        """
        self._reading += 1
        self._idle.clear()  # this is not idle until it is read
        try:
            text = await self._admitted(head, body, hold)
        except (CallError, InvalidInput) as error:
            return self._refused(head, hold, error)
        except asyncio.CancelledError:
            hold.release()
            self._ledger.rejected[Rejection.ABANDONED] += 1
            raise
        except GeneratorExit:
            raise
        except BaseException as bug:
            return self._refused(head, hold, unread_bug(bug))
        finally:
            self._reading -= 1
            self._look_whether_idle()
        try:
            return await text.answer
        except asyncio.CancelledError:
            text.cancel()
            raise
        except CallError as error:
            return self._refused(head, hold, error)

    def _refused(self, head: RequestHead, hold: Hold, error: CallError | InvalidInput) -> Answer:
        hold.release()
        return named(self._refusals.response(head, error), head.request_id)

    async def _admitted(self, head: RequestHead, body: Buffer, hold: Hold) -> LiveText:
        """Read a request and let it wait; raises `CallError` or `InvalidInput`."""
        arrived = self._loop.time()
        self._require_open()
        limit = self.settings.request_timeout_seconds
        timeout = options_of_headers(head.headers).timeout
        if timeout is not None:
            limit = min(limit, timeout)
        try:
            draft, waited = await within(limit, self.server.read(head, body, hold))
        except TimeoutError:
            raise TooLate(limit) from None
        if waited:
            self._require_open()
        return self._admit(draft, head, hold, arrived, limit)

    def _admit(
        self, draft: Draft, head: RequestHead, hold: Hold, arrived: float, limit: float
    ) -> LiveText:
        """Let a request wait that has so many seconds to its first token; raises `Rejected`."""
        now, settings, fields = self._loop.time(), self.settings, draft.fields
        terms = agreed(options_of_headers(head.headers), settings)
        request = GenerationRequest(
            id=next(self._numbers),
            share=share_for(fields.model, hold.share, settings.tenants),
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
        work = self.admission.work(request)
        self.counts.asked(work, now)
        refusal = self.admission.offer(request, now)
        if refusal is not None:
            self._ledger.refused_rows(request.share.tenant, fields.adapter, 1)
            raise rejected(refusal, settings, limit)
        self._ledger.accept(1, work, now)
        text = draft.text(Admitted(self, request, head, hold, limit, work))
        self._texts[request.id] = text
        self._busy.set()
        self._decide()
        return text

    def oldest_age(self) -> float:
        """Seconds since the oldest request that waits came."""
        return self.admission.oldest_age(self._loop.time())

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self._reconfigure()

    def engine_is(self, limits: EngineLimits) -> None:
        """The engine behind it is one of ours, with such limits from now on."""
        is_first, self._limits = self._limits is None, limits
        if is_first:
            # Nothing was let in before: there was no model.
            self.admission = Admission(self._by())
        self._reconfigure()

    def open(self) -> None:
        """The server takes requests."""
        self._open = True
        self._decide()

    def close(self) -> None:
        """It takes none at present; what is there may still end."""
        self._open = False

    def step_ends(self) -> None:
        """See `EngineListener`: decide behind the step."""
        self._deciding = True

    def was_cached(self, request_id: int, tokens: int) -> None:
        """See `EngineListener`."""
        self.counts.cached_tokens += tokens
        self.admission.cached_prefix(request_id, tokens)

    def stepped(self, view: EngineView, preemptions: int) -> None:
        """See `EngineListener`."""
        self.counts.preemptions = preemptions
        self.engine(view)

    def engine(self, view: EngineView) -> None:
        """What the server says of itself."""
        self._deciding = False
        now = self._loop.time()
        self.admission.engine(view, now)
        self.counts.cache_used(view.cache_usage, now)
        self._decide()

    def give_up(self, reason: str, *, under_way: bool = True) -> None:
        """End what waits, and what is `under_way`: there is no time left for it."""
        for text in list(self._texts.values()):
            if text.waits or under_way:
                error = Unserved(reason, status=503, retry_after=1.0)
                text.give_up(error, Outcome.FAILED)

    async def idle(self) -> None:
        """Return once nothing is read, waits or is under way."""
        await self._idle.wait()

    async def busy(self) -> None:
        """Return once something waits or is under way."""
        await self._busy.wait()

    def heard(self, text: LiveText, tokens: int, now: float) -> None:
        """See `TextListener`."""
        request = text.request
        if text.first_at is None:
            text.first_at = now
            self.counts.first_token.observe(now - request.arrived)
            self.admission.first_token(request.id, now)
            tokens -= 1
            if self.admission.waiting:
                self._decide()  # what waited for this prompt to be read may go
        self.admission.tokens(request.id, tokens, now)

    def comes_back(self, text: LiveText, rest_seconds: float) -> None:
        """See `TextListener`."""
        now = self._loop.time()
        self._ledger.comes_back_alone(now)
        self.admission.came_back(text.request.id, now, rest_seconds=rest_seconds)
        self._decide()

    def ended(self, text: LiveText, outcome: Outcome, *, waited: bool) -> None:
        """See `TextListener`."""
        now, request, output_tokens = self._loop.time(), text.request, text.output_tokens
        completed = outcome is Outcome.COMPLETED
        del self._texts[request.id]
        self._ledger.settle_alone(outcome, text.work, now, waiting=waited)
        if completed:
            self._ledger.answered_rows(request.share.tenant, request.adapter, 1)
            target = self.settings.target_first_token_seconds
            if target is not None and text.first_at is not None:
                self._ledger.late += text.first_at - request.arrived > target
        self.counts.ended(text.prompt_tokens or request.prompt_tokens, output_tokens)
        if completed and text.first_at is not None and output_tokens > 1:
            took = text.heard_at - text.first_at
            self.counts.output_token.observe(took / (output_tokens - 1))
        self._look_whether_idle()
        if waited:
            self.admission.withdraw(request.id, now)
        else:
            whole = output_tokens if completed and output_tokens else None
            self.admission.ended(request.id, now, output_tokens=whole)
        self._decide()

    def _by(self) -> AdmissionSettings:
        return AdmissionSettings.of(self.settings, self._limits)

    def _reconfigure(self) -> None:
        self.admission.configure(self._by(), self._loop.time())
        self._decide()

    def _look_whether_idle(self) -> None:
        if not self._texts:
            self._busy.clear()
            if not self._reading:
                self._idle.set()

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
            self.admission = Admission(self._by())
            error = Unserved(message, status=500)
            for text in [one for one in self._texts.values() if one.waits]:
                text.give_up(error, Outcome.FAILED)
        finally:
            self._deciding = False

    def _decide_once(self) -> None:
        now = self._loop.time()
        grant = self.admission.poll(now, is_open=self._open)
        for shed in grant.shed:
            text = self._texts[shed.request_id]
            seconds = text.request.deadline - text.request.arrived
            error = ended(shed.outcome, seconds=seconds, retry_after=1.0)
            text.give_up(error, shed.outcome)
        for number in grant.release:
            text = self._texts[number]
            self._ledger.leaves_alone(now)
            self.counts.queued.observe(now - text.request.arrived)
            text.send()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isfinite(grant.wake_at):
            self._timer = self._loop.call_at(grant.wake_at, self._decide)
