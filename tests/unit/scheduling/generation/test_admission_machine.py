"""Admission through any sequence of events: nobody is lost, and each goes or is given up once."""

from dataclasses import replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
    EngineStep,
    EngineView,
    GenerationRequest,
)
from batchedmodel_scheduling.latency.step_times import StepCost
from batchedmodel_scheduling.queue.items import Priority, RequestGroup
from support.examples import examples

chosen = st.builds(
    AdmissionSettings,
    max_concurrent_requests=st.none() | st.integers(1, 6),
    first_token_seconds=st.none() | st.sampled_from([0.1, 1.0]),
    token_seconds=st.none() | st.just(0.03),
    lateness=st.sampled_from(Lateness),
    max_queue_size=st.sampled_from([4, 30, 2048]),
)
counts = st.none() | st.integers(0, 100)
OURS = EngineLimits(
    max_sequences=6,
    max_tokens_per_step=2048,
    blocks=1000,
    block_tokens=16,
    cost=StepCost(base=0.01, prefill_token=1e-5, sequence=1e-4),
)


class AdmissionMachine(RuleBasedStateMachine):
    """Compares what is told with plain sets of who waits and who runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.waiting: dict[int, GenerationRequest] = {}
        self.running: dict[int, GenerationRequest] = {}
        self.left = 0
        self.accepted = 0
        self.virtual = 0.0

    @initialize(settings=chosen, engine=st.none() | st.just(OURS))
    def begin(self, settings: AdmissionSettings, engine: EngineLimits | None) -> None:
        self.settings = replace(settings, engine=engine)
        self.admission = Admission(self.settings)

    # What may happen

    @rule(
        tenant=st.sampled_from("abc"),
        key=st.sampled_from("xy"),
        prompt=st.sampled_from([0, 10, 5000]),
        allowed=st.none() | st.integers(0, 500),
        choices=st.sampled_from([1, 1, 3]),
        patience=st.sampled_from([0.0, 0.3, 30.0, 30.0]),
        streams=st.booleans(),
        priority=st.sampled_from(Priority),
        group=st.none() | st.sampled_from("gh"),
        weight=st.sampled_from([0.5, 1.0]),
        whole=st.booleans(),
        certain=st.sampled_from([1, 1, 100_000]),
    )
    def a_request_comes(
        self,
        tenant: str,
        key: str,
        prompt: int,
        allowed: int | None,
        choices: int,
        patience: float,
        streams: bool,
        priority: Priority,
        group: str | None,
        weight: float,
        whole: bool,
        certain: int,
    ) -> None:
        self.number += 1
        request = GenerationRequest(
            id=self.number, share=Share(tenant, weight, 0.9), key=key, prompt_tokens=prompt,
            max_tokens=allowed, choices=choices, arrived=self.now,
            deadline=self.now + patience, streams=streams, priority=priority,
            group=None if group is None else RequestGroup(id=group, size=3),
            whole=whole, least_tokens=certain,
        )  # fmt: skip
        known = self.admission.refusal(request.share, self.now)
        refused = self.admission.offer(request, self.now)
        assert known is None or refused == known
        if refused is None:
            self.waiting[request.id] = request
            self.accepted += 1
        else:
            assert 1.0 <= refused.retry_after <= 600.0

    @rule()
    def it_is_asked(self) -> None:
        if self.settings.engine is not None:
            self.the_engine_tells_what_it_has()
        grant = self.admission.poll(self.now)
        for number, outcome in grant.shed:
            request = self.waiting.pop(number)
            self.left += 1
            assert (outcome is Outcome.EXPIRED) <= (request.deadline <= self.now)
            has_target = self.settings.first_token_seconds is not None
            assert (outcome is Outcome.SHED) <= (has_target or request.whole)
        for number in grant.release:
            request = self.running[number] = self.waiting.pop(number)
            assert self.now < request.deadline
        assert all(self.now < request.deadline for request in self.waiting.values())
        assert grant.wake_at > self.now
        if self.settings.engine is not None:
            choices = sum(request.choices for request in self.running.values())
            # Some go for whom others give way; the last of these may be several.
            assert not grant.release or choices <= OURS.max_sequences + 8 + 2
        elif self.settings.max_concurrent_requests is not None and grant.release:
            assert len(self.running) <= self.settings.max_concurrent_requests
        if not self.running and self.waiting:
            assert not len(self.admission._waiting.queue), "all keys rest"

    def the_engine_tells_what_it_has(self) -> None:
        """All that it was sent runs, as far as there are places."""
        sent = sum(request.choices for request in self.running.values())
        tokens = sum(request.prompt_tokens for request in self.running.values())
        step = EngineStep(
            seconds=0.02, running=min(sent, OURS.max_sequences),
            waiting=max(0, sent - OURS.max_sequences),
            free_blocks=max(0, OURS.blocks - tokens // OURS.block_tokens), backlog=0,
            prefill_tokens=0, tokens=sent, ended=0,
        )  # fmt: skip
        self.admission.engine(EngineView(step=step), self.now)

    @rule(passed=st.sampled_from([0.001, 0.05, 0.3, 2.0, 40.0]))
    def time_passes(self, passed: float) -> None:
        self.now += passed

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def a_caller_leaves_or_seems_to(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted({*self.waiting, *self.running})))
        self.admission.withdraw(number, self.now)
        self.left += self.waiting.pop(number, None) is not None

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.sampled_from([1, 20]))
    def tokens_come(self, data: st.DataObject, count: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.running)))
        self.admission.first_token(number, self.now)
        self.admission.tokens(number, count, self.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), output=st.none() | st.integers(0, 300))
    def one_ends(self, data: st.DataObject, output: int | None) -> None:
        number = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[number]
        self.left += 1
        self.admission.ended(number, self.now, output_tokens=output)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), rest=st.sampled_from([0.0, 0.2, 5.0]))
    def one_comes_back(self, data: st.DataObject, rest: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.running)))
        self.waiting[number] = self.running.pop(number)
        self.admission.came_back(number, self.now, rest_seconds=rest)

    @rule(running=counts, waiting=counts, cache=st.none() | st.floats(0, 1))
    def gauges_are_read(
        self, running: int | None, waiting: int | None, cache: float | None
    ) -> None:
        view = EngineView(running=running, waiting=waiting, cache_usage=cache)
        self.admission.engine(view, self.now)

    @rule(settings=chosen)
    def the_settings_change(self, settings: AdmissionSettings) -> None:
        self.settings = replace(settings, engine=self.settings.engine)
        self.admission.configure(self.settings, self.now)

    # What holds meanwhile

    @invariant()
    def books_agree(self) -> None:
        admission = self.admission
        shed = len(admission._waiting._shed)
        assert admission.waiting == len(self.waiting) - shed
        assert admission.running == len(self.running)
        assert self.accepted == len(self.waiting) + len(self.running) + self.left
        assert admission.backlog_work >= 0.0
        assert 1 <= admission.limit <= 4096
        assert admission.oldest_age(self.now) >= 0.0
        inside = admission._waiting
        assert inside.queue.virtual_time >= self.virtual
        self.virtual = inside.queue.virtual_time
        assert len(inside._groups) <= len(self.waiting) + len(self.running)
        assert sum(one.items for one in inside._tenants.values()) == len(inside.queue)
        assert inside.work >= 0.0
        assert len(admission._server.here) <= 3

    def teardown(self) -> None:
        """Whoever still waits goes, if all others end."""
        if not hasattr(self, "admission"):
            return
        for _ in range(2 * len(self.waiting) + len(self.running) + 2):
            for number in list(self.running):
                self.one_of_all_ends(number)
            self.now += 0.001
            self.it_is_asked()
            self.now = min(
                [self.now + 6.0, *(one.deadline for one in self.waiting.values())]
                if not self.running
                else [self.now]
            )
        self.it_is_asked()
        assert not self.waiting

    def one_of_all_ends(self, number: int) -> None:
        del self.running[number]
        self.left += 1
        self.admission.ended(number, self.now, output_tokens=5)


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = hypothesis_settings(
    max_examples=examples(200), stateful_step_count=50, deadline=None
)
