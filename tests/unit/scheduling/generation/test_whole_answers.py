"""Answers in one piece, in virtual time: what goes is whole in its time, in front of either engine.

16 places, 30 ms a token. Without the rule the closed loop below has a sixth of the answers that the
places could make, and five sixths of the tokens are thrown away.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import Call, EngineFigures, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod, Watcher
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.engine.giving_way import GivingWay
from batchedmodel_scheduling.engine.step_planner import StepPlanner, StepSettings
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
    Shed,
)
from batchedmodel_scheduling.generation.requests import AtOnce
from batchedmodel_scheduling.latency.step_times import StepCost
from support.generation_requests import busy, experienced, offered, request

PLACES = 16
STEP_SECONDS = 0.03
Pod = TokenPod[PlannedEngine] | TokenPod[TokenEngine]


class World(Watcher):
    """Callers with 4 s for each answer; a refused one comes again after a second."""

    def __init__(self, kind: str, *, tokens: Callable[[random.Random], int], seed: int = 1) -> None:
        self.pod = _pod(kind, self)
        self.tokens = tokens
        self.max_tokens: int | None = None
        """None: as many as the answer has."""
        self.whole = 0
        self.answered_tokens = 0
        self.gone: Counter[Rejection | Outcome] = Counter()
        self.cut = 0
        """Answers that were begun, and not whole in time."""
        self._until = 0.0
        self._numbers = itertools.count()
        self._chance = random.Random(seed)

    def run(self, *, callers: int, seconds: float, too_long: int = 0) -> None:
        """Let these callers ask for so long, and all of it end.

        Beside them are so many of another tenant, whose answers are never there in time.
        """
        self._until = self.pod.now + seconds
        for _ in range(too_long):
            self.ask(self.pod.now, tenant="b")
        for number in range(callers):
            self.ask(self.pod.now + 0.001 * number)
        self.pod.advance(self._until + 5.0)

    def ask(self, at: float, tenant: str = "a") -> None:
        tokens = self.tokens(self._chance) if tenant == "a" else 150
        call = Call(
            number=next(self._numbers), share=Share(tenant), prompt=20, output=tokens, arrived=at,
            patience=4.0, max_tokens=self.max_tokens or tokens, streams=False, whole=True,
        )  # fmt: skip
        self.pod.arrive(call)

    def ended(self, call: Call, now: float) -> None:
        pause = 0.002
        if call.gone is None:
            self.answered_tokens += call.given
            self.whole += now <= self._until
        else:
            self.gone[call.gone] += 1
            self.cut += call.given > 0
            pause = 0.002 if call.gone is Outcome.EXPIRED else 1.0
        if now + pause < self._until:
            self.ask(now + pause, call.share.tenant)

    @property
    def thrown_away(self) -> float:
        """Of all tokens that were made."""
        return 1 - self.answered_tokens / self.pod.engine.given_tokens


def _pod(kind: str, watcher: Watcher) -> Pod:
    if kind == "another":
        figures = EngineFigures(sequences=PLACES, step_seconds=STEP_SECONDS)
        admission = Admission(AdmissionSettings(max_concurrent_requests=PLACES))
        return TokenPod(TokenEngine(figures), admission, gauges=False, watcher=watcher)
    cost = StepCost(base=STEP_SECONDS, prefill_token=5e-6, sequence=0.0)
    steps = StepSettings(
        max_sequences=PLACES, max_tokens_per_step=512, block_tokens=16, blocks=9999
    )
    limits = EngineLimits(
        max_sequences=PLACES, max_tokens_per_step=512, blocks=9999, block_tokens=16, cost=cost
    )
    engine = PlannedEngine(StepPlanner(steps, cost), cost, giving_way=GivingWay())
    return TokenPod(engine, Admission(AdmissionSettings(engine=limits)), watcher=watcher)


both = pytest.mark.parametrize("kind", ["ours", "another"])


@both
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("allowed", [None, 4096])
def test_with_three_callers_to_a_place_nearly_all_that_is_computed_is_answered(
    kind: str, seed: int, allowed: int | None
) -> None:
    world = World(kind, tokens=lambda chance: 100, seed=seed)
    world.max_tokens = allowed
    world.run(callers=3 * PLACES, seconds=20.0)
    assert world.whole >= 0.85 * PLACES * 20.0 / (100 * STEP_SECONDS)
    assert world.thrown_away <= 0.05


@both
def test_answers_that_nearly_take_their_time_are_made_too(kind: str) -> None:
    world = World(kind, tokens=lambda chance: 128)
    world.run(callers=3 * PLACES, seconds=40.0)
    assert world.whole >= 0.85 * PLACES * 40.0 / (128 * STEP_SECONDS)
    assert world.thrown_away <= 0.05


@both
def test_of_unlike_lengths_few_are_computed_for_nothing(kind: str) -> None:
    world = World(kind, tokens=lambda chance: chance.randint(20, 100))
    world.max_tokens = 1000
    world.run(callers=3 * PLACES, seconds=60.0)
    assert world.answered_tokens >= 0.85 * PLACES * 60.0 / STEP_SECONDS
    assert world.thrown_away <= 0.05


@both
@pytest.mark.parametrize("allowed", [None, 4096])
def test_answers_that_are_always_too_long_go_to_free_places_only(
    kind: str, allowed: int | None
) -> None:
    world = World(kind, tokens=lambda chance: 150)
    world.max_tokens = allowed
    world.run(callers=3 * PLACES, seconds=60.0)
    assert world.cut <= PLACES * (60.0 / 4.0 + 1)
    assert world.gone[Rejection.PREDICTED_LATE] >= 1000


@both
def test_beside_a_tenant_whose_answers_are_all_too_long_others_have_theirs(kind: str) -> None:
    """Catches one tenant's lengths that count for all: it had all answers of the other refused."""
    world = World(kind, tokens=lambda chance: 60)
    world.max_tokens = 1000
    world.run(callers=8, seconds=60.0, too_long=3 * PLACES)
    assert world.whole >= 0.8 * 8 * 60.0 / (60 * STEP_SECONDS)


def test_lengths_of_one_tenant_keep_no_answers_of_another_from_free_places_or_from_the_queue() -> (
    None
):
    """Catches an idle place beside refused answers: 47 of 54 were refused at 4 of 16 places."""
    admission = experienced(AdmissionSettings(max_concurrent_requests=8))
    for _ in range(20):
        long = request("long", arrived=100.0)._replace(max_tokens=None)
        offered(admission, long, now=100.0)
        admission.poll(100.0)
        admission.ended(long.id, 100.0, output_tokens=2000)
    offered(admission, request("long", arrived=100.0), now=100.0)
    admission.poll(100.0)
    for _ in range(10):
        short = request("short", arrived=100.0, patience=10.0, whole=True)
        offered(admission, short._replace(max_tokens=None), now=100.0)
        admission.poll(100.0)
    assert (admission.running, admission.waiting) == (8, 3)


def test_the_only_request_of_a_tenant_has_its_turn_at_a_full_server_whatever_it_learnt() -> None:
    """Catches a tenant kept out for ever by what it learnt, as what is refused teaches nothing."""
    admission, running = full_and_experienced("others")
    first, second = (request("before", arrived=100.0, patience=0.9, whole=True) for _ in range(2))
    offered(admission, first, now=100.0)
    assert admission.offer(second, 100.0) is not None, "the usual answer takes a second"
    admission.ended(running[0], 100.8, output_tokens=50)
    assert admission.poll(100.8).release == (first.id,)


@both
def test_a_wrong_guess_is_found_out(kind: str) -> None:
    """Answers become shorter after they were all too long."""
    world = World(kind, tokens=lambda chance: 200)
    world.max_tokens = 300
    world.run(callers=3 * PLACES, seconds=40.0)
    assert not world.whole
    world.tokens = lambda chance: 100
    world.run(callers=3 * PLACES, seconds=40.0)
    assert world.whole >= 0.5 * PLACES * 40.0 / (100 * STEP_SECONDS)


@both
def test_while_places_are_free_nothing_is_refused(kind: str) -> None:
    world = World(kind, tokens=lambda chance: chance.randint(50, 130))
    world.max_tokens = 200
    world.run(callers=PLACES - 1, seconds=60.0)
    assert not world.gone


def full_and_experienced(tenant: str = "before") -> tuple[Admission, list[int]]:
    """Eight run, since the 100th second; the usual answer of 50 tokens takes one second."""
    admission = experienced(AdmissionSettings(max_concurrent_requests=8))
    running = [request(tenant, arrived=100.0) for _ in range(8)]
    offered(admission, *running, now=100.0)
    assert len(admission.poll(100.0).release) == 8
    return admission, [one.id for one in running]


def test_what_would_not_be_whole_any_more_is_given_up_while_it_waits() -> None:
    admission, _ = full_and_experienced()
    one = request("before", arrived=100.0, patience=1.5, whole=True)
    offered(admission, one, now=100.0)
    grant = admission.poll(100.1)
    assert not grant.shed
    assert 100.3 <= grant.wake_at <= 100.5
    assert admission.poll(100.6).shed == (Shed(one.id, Outcome.SHED),)


def test_of_a_stream_only_the_first_token_must_be_in_time() -> None:
    admission, running = full_and_experienced()
    one = request("before", arrived=100.0, patience=1.5)
    offered(admission, one, now=100.0)
    assert not admission.poll(101.2).shed
    admission.ended(running[0], 101.3, output_tokens=50)
    assert admission.poll(101.3).release == (one.id,)


def test_what_may_become_too_long_goes_behind_what_has_more_time_and_before_nothing() -> None:
    admission, running = full_and_experienced()
    for tokens in [5, 45] * 150:  # so the mean takes half a second, and many take nearly one
        one = request("before", arrived=100.0)
        admission.ended(running.pop(), 100.0, output_tokens=tokens)
        offered(admission, one, now=100.0)
        running += admission.poll(100.0).release
    short, shorter, long, longer = (
        request("before", arrived=100.0, patience=one, whole=True) for one in (1.6, 1.61, 4.0, 4.1)
    )
    offered(admission, short, shorter, long, longer, now=100.0)
    admission.poll(100.8)
    order = list[int]()
    for number in running[:4]:
        admission.ended(number, 100.8, output_tokens=50)
        order += admission.poll(100.8).release
    assert order == [long.id, longer.id, short.id, shorter.id]


def test_before_anything_was_learnt_all_are_let_in() -> None:
    admission, running = busy()
    one = request(patience=0.5, whole=True)
    offered(admission, one)
    admission.ended(running, 0.4, output_tokens=None)
    assert admission.poll(0.4).release == (one.id,)


@pytest.mark.parametrize("least", [10, 200])
def test_what_has_too_many_tokens_for_certain_is_refused_at_once_even_by_an_idle_engine(
    least: int,
) -> None:
    cost = StepCost(base=0.03, prefill_token=5e-6, sequence=0.0)
    limits = EngineLimits(
        max_sequences=4, max_tokens_per_step=512, blocks=999, block_tokens=16, cost=cost
    )
    admission = Admission(AdmissionSettings(engine=limits))
    refusal = admission.offer(request(patience=4.0, whole=True, least=least), 0.0)
    if least == 10:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.reason is Rejection.PREDICTED_LATE
        assert refusal.retry_after >= 1.0


def test_choices_that_do_not_run_at_once_take_their_time_one_after_the_other() -> None:
    admission, _ = full_and_experienced()
    # Each choice takes a second; with two at a time eight take four.
    for texts, taken in ((2, False), (8, True)):
        one = request(
            "before", arrived=100.0, patience=2.5, whole=True, choices=8,
            at_once=AtOnce(100, texts),
        )  # fmt: skip
        assert (admission.offer(one, 100.0) is None) is taken
        admission.withdraw(one.id, 100.0)
