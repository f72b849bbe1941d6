"""Texts that wait for their server and those that it has: who goes next, and what became of each.

`Admission` decides. This is the shell around it: it owns the texts, one timer, and the counts.
"""

import asyncio
from itertools import count
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share, share_for
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_scheduling.core.policy import NEVER
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
    EngineView,
    GenerationRequest,
)
from batchedmodel_sidecar.batching.pending_request import ended, rejected
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.generation.live_text import Admitted, Draft, LiveText
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.http.responses import ours
from batchedmodel_sidecar.protocols.headers import agreed, options_of_headers
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts, GenerationWork
from batchedmodel_sidecar.telemetry.ledger import Ledger, answered_rows, refused_rows


class TextQueue:
    """The texts in front of one server and at it."""

    def __init__(self, settings: BatchSettings, ledger: Ledger, counts: GenerationCounts) -> None:
        """Needs a running loop."""
        self._settings = settings
        self._limits: EngineLimits | None = None
        """Of an engine of ours, once there is one."""
        self._admission = Admission(AdmissionSettings.of(settings))
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self.work: Final = GenerationWork(ledger, self._loop.time())
        self._counts = counts
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

    @property
    def admission(self) -> Admission:
        """The policy, for metrics."""
        return self._admission

    def adapters(self) -> tuple[set[str], set[str]]:
        """Those of requests at the server, and those of requests that wait."""
        running: set[str] = set()
        waiting: set[str] = set()
        for text in self._texts.values():
            if text.request.adapter is not None:
                (waiting if text.waits else running).add(text.request.adapter)
        return running, waiting

    def reading_begins(self) -> None:
        """A request came that is not admitted yet: this is not idle until it is read."""
        self._reading += 1
        self._idle.clear()

    def reading_ends(self) -> None:
        """It was admitted, or not."""
        self._reading -= 1
        self._look_whether_idle()

    def refuse_full(self, share: Share) -> None:
        """Raise `Rejected` where a tenant's request would find no room, whatever it holds."""
        now = self._loop.time()
        refusal = self._admission.refusal(share, now)
        if refusal is not None:
            self.work.add_unseen(now)
            raise rejected(refusal, self._settings)

    def admit(
        self, draft: Draft, head: RequestHead, held: Hold, arrived: float, limit: float
    ) -> LiveText:
        """Let a request wait that has so many seconds to its first token; raises `Rejected`."""
        now, settings, fields = self._loop.time(), self._settings, draft.fields
        terms = agreed(options_of_headers(head.headers), settings)
        request = GenerationRequest(
            id=next(self._numbers),
            share=share_for(fields.model, held.share, settings.tenants),
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
            raise rejected(refusal, settings, limit)
        self._ledger.accept(1, work, now)
        text = draft.text(Admitted(self, request, head, held, limit, work))
        self._texts[request.id] = text
        self._busy.set()
        self._decide()
        return text

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
        self._counts.cached_tokens += tokens
        self._admission.found(request_id, tokens)

    def stepped(self, view: EngineView, preemptions: int) -> None:
        """See `EngineListener`."""
        self._counts.preemptions = preemptions
        self.engine(view)

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
            self._counts.first_token.observe(now - request.arrived)
            self._admission.first_token(request.id, now)
            tokens -= 1
            if self._admission.waiting:
                self._decide()  # what waited for this prompt to be read may go
        self._admission.tokens(request.id, tokens, now)

    def comes_back(self, text: LiveText, rest_seconds: float) -> None:
        """See `TextListener`."""
        now = self._loop.time()
        self._ledger.comes_back_alone(now)
        self._admission.came_back(text.request.id, now, rest_seconds=rest_seconds)
        self._decide()

    def ended(self, text: LiveText, outcome: Outcome, *, waited: bool) -> None:
        """See `TextListener`."""
        now, request, output_tokens = self._loop.time(), text.request, text.output_tokens
        completed = outcome is Outcome.COMPLETED
        del self._texts[request.id]
        self._ledger.settle_alone(outcome, text.work, now, waiting=waited)
        if completed:
            answered_rows(self._ledger, request.share.tenant, request.adapter, 1)
            target = self._settings.target_first_token_seconds
            if target is not None and text.first_at is not None:
                self._ledger.late += text.first_at - request.arrived > target
        self._counts.ended(text.prompt_tokens or request.prompt_tokens, output_tokens)
        if completed and text.first_at is not None and output_tokens > 1:
            took = text.heard_at - text.first_at
            self._counts.output_token.observe(took / (output_tokens - 1))
        self._look_whether_idle()
        if waited:
            self._admission.withdraw(request.id, now)
        else:
            whole = output_tokens if completed and output_tokens else None
            self._admission.ended(request.id, now, output_tokens=whole)
        self._decide()

    def _by(self) -> AdmissionSettings:
        return AdmissionSettings.of(self._settings, self._limits)

    def _reconfigure(self) -> None:
        self._admission.configure(self._by(), self._loop.time())
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
            self._admission = Admission(self._by())
            error = Unserved(message, status=500)
            for text in [one for one in self._texts.values() if one.waits]:
                text.give_up(error, Outcome.FAILED)
        finally:
            self._deciding = False

    def _decide_once(self) -> None:
        now = self._loop.time()
        grant = self._admission.poll(now, is_open=self._open)
        for shed in grant.shed:
            text = self._texts[shed.request_id]
            seconds = text.request.deadline - text.request.arrived
            error = ended(shed.outcome, seconds=seconds, retry_after=1.0)
            text.give_up(error, shed.outcome)
        for number in grant.release:
            text = self._texts[number]
            self._ledger.leaves_alone(now)
            self._counts.queued.observe(now - text.request.arrived)
            text.send()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if grant.wake_at != NEVER:
            self._timer = self._loop.call_at(grant.wake_at, self._decide)
