"""The admission before an engine of ours, whatever comes: in virtual time, through real plans."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import Call
from batchedmodel_cli.simulator.token_pods import TokenPod, Watcher
from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.engine.giving_way import GivingWay
from batchedmodel_scheduling.engine.step_planner import StepPlanner, StepSettings
from batchedmodel_scheduling.generation.admission import Admission, AdmissionSettings, EngineLimits
from batchedmodel_scheduling.latency.step_times import StepCost
from support.examples import examples

COST = StepCost(base=0.010, prefill_token=60e-6, sequence=0.2e-3, context_token=0.05e-6)
STEPS = StepSettings(
    max_sequences=8, max_tokens_per_step=512, block_tokens=16, blocks=200, token_seconds=0.05
)


class Books(Watcher):
    """Notes what happens, and that it happens once."""

    def __init__(self) -> None:
        self.released_calls: list[Call] = []
        self.ends: dict[Call, float] = {}

    def released(self, call: Call, now: float) -> None:
        self.released_calls.append(call)

    def ended(self, call: Call, now: float) -> None:
        assert call not in self.ends
        assert (call.ended_at is None) != (call.gone is None)
        self.ends[call] = now


class Bounded(PlannedEngine):
    """Looks before each step at what it was sent beyond what it can do."""

    most_waiting = most_unread = 0
    run = 0
    """Sequences of all steps together."""

    def begin(self, now: float) -> None:
        here = (*self.running, *self.waiting)
        unread = sum(min(one.missing, 512) for one in here if one.missing > 1)
        self.most_unread = max(self.most_unread, unread)
        super().begin(now)
        self.run += len(self.running)
        if not self.preempted and not self.moved:
            self.most_waiting = max(self.most_waiting, len(self.waiting))


def pod(
    books: Watcher, steps: StepSettings = STEPS, **others: object
) -> tuple[TokenPod[Bounded], Bounded]:
    limits = EngineLimits(
        max_sequences=steps.max_sequences,
        max_tokens_per_step=steps.max_tokens_per_step,
        blocks=steps.blocks,
        block_tokens=steps.block_tokens,
        cost=COST,
    )
    admission = Admission(AdmissionSettings(engine=limits, **others))  # type: ignore[arg-type]
    engine = Bounded(StepPlanner(steps, COST), COST, giving_way=GivingWay())
    return TokenPod(engine, admission, watcher=books), engine


def served(one: TokenPod[Bounded], calls: Iterable[Call], until: float = 2000.0) -> None:
    for call in calls:
        one.arrive(call)
    one.advance(until)


calls_of_any_kind = st.lists(
    st.builds(
        Call,
        number=st.just(0),
        share=st.builds(Share, st.sampled_from("abc"), st.sampled_from([0.5, 1.0]), st.just(1.0)),
        prompt=st.sampled_from([1, 30, 700, 2400]),
        output=st.integers(1, 120),
        arrived=st.floats(0, 4),
        patience=st.sampled_from([0.2, 3.0, 1000.0]),
        max_tokens=st.sampled_from([None, 128]),
        streams=st.booleans(),
        whole=st.booleans(),
    ),
    max_size=60,
)


@given(
    calls_of_any_kind,
    st.sampled_from([160, 200, 1000]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from(Lateness),
)
@settings(max_examples=examples(200), deadline=None, phases=[Phase.generate])
def test_each_is_settled_once_and_the_engine_never_has_more_than_its_room(
    drawn: list[Call], blocks: int, sequences: int, lateness: Lateness
) -> None:
    calls = [replace(call, number=number) for number, call in enumerate(drawn)]
    books = Books()
    steps = replace(STEPS, blocks=blocks, max_sequences=sequences)
    one, engine = pod(books, steps, lateness=lateness, first_token_seconds=1.0)
    served(one, calls)
    assert one.idle
    assert len(books.ends) == len(calls)
    assert engine.free_blocks == blocks
    assert one.admission is not None
    assert (one.admission.running, one.admission.waiting) == (0, 0)
    few = 8  # that go for others to give way to them, or beside others' prompts
    assert engine.most_waiting <= 1 + 2 * sequences + few
    assert engine.preempted or engine.most_unread <= (4 + few) * steps.max_tokens_per_step
    patient = [call for call in calls if call.patience == 1000.0 and call.gone is not None]
    assert lateness is Lateness.REFUSE or not patient


def flood(seconds: float, rate: float, *, seed: int = 1, **others: object) -> list[Call]:
    chance, at, found = random.Random(seed), 0.0, []
    while (at := at + chance.expovariate(rate)) < seconds:
        call = Call(
            number=0, share=Share("a"), prompt=chance.choice([20, 200]),
            output=chance.randint(20, 60), arrived=at, patience=1e6,
        )  # fmt: skip
        found.append(replace(call, **others))  # type: ignore[arg-type]
    return found


def numbered(*floods: list[Call]) -> list[Call]:
    together = sorted((call for one in floods for call in one), key=lambda call: call.arrived)
    return [replace(call, number=number) for number, call in enumerate(together)]


def test_the_queue_is_in_the_sidecar() -> None:
    books = Books()
    one, engine = pod(books)
    served(one, numbered(flood(20.0, 60.0)), until=20.0)
    assert one.admission is not None
    assert one.admission.waiting > 500
    assert engine.most_waiting <= 3
    assert engine.run / engine.steps >= 7.9, "no place stays empty for long"


def test_first_tokens_are_due_in_the_order_in_which_a_tenants_requests_go() -> None:
    books = Books()
    one, _ = pod(books, first_token_seconds=60.0)
    served(one, numbered(flood(10.0, 30.0)))
    arrived = [call.arrived for call in books.released_calls]
    assert arrived == sorted(arrived)


@pytest.mark.parametrize("heavier", [1.0, 3.0])
def test_tenants_have_their_shares_of_the_engine(heavier: float) -> None:
    books = Books()
    one, _ = pod(books)
    light = flood(60.0, 40.0, seed=1, share=Share("light"))
    heavy = flood(60.0, 40.0, seed=2, share=Share("heavy", heavier), prompt=400)
    served(one, numbered(light, heavy), until=60.0)
    work = {"light": 0.0, "heavy": 0.0}
    for call in books.released_calls:
        if (call.released_at or 0.0) >= 10.0:
            output = COST.base / 8 + COST.sequence
            work[call.share.tenant] += COST.prefill_token * call.prompt + output * call.output
    assert work["heavy"] / work["light"] == pytest.approx(heavier, rel=0.1)


def test_a_prompt_that_needs_most_of_the_cache_is_answered_amid_a_flood_of_small_ones() -> None:
    books = Books()
    one, _ = pod(books)
    long = flood(30.0, 0.2, seed=3, share=Share("long"), prompt=2500)
    served(one, numbered(flood(30.0, 60.0), long), until=40.0)
    waits = [call.first_token for call in books.released_calls if call.prompt == 2500]
    assert len(waits) == len(long)
    assert max(waits) < 4.0


def test_late_ones_are_refused_before_they_cost_anything_and_the_others_are_in_time() -> None:
    books = Books()
    one, _ = pod(books, first_token_seconds=1.0, lateness=Lateness.REFUSE)
    calls = numbered(flood(60.0, 30.0))
    served(one, calls)
    gone = [call for call in calls if call.gone is not None]
    assert all(call.released_at is None for call in gone)
    judged = [call for call in calls if call.gone is None and call.arrived > 10.0]
    late = sum(call.first_token > 1.0 for call in judged)
    assert len(judged) > 300
    assert late <= 0.01 * len(judged)
