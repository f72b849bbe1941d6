"""Requests that are tried though by what was learnt their answers should not be whole in time.

Each would catch one trial for all: a caller that never has its answer kept out everybody else.
"""

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.generation.at_server import Running
from batchedmodel_scheduling.generation.estimates import TRIAL_PAUSE_SECONDS, Estimates
from batchedmodel_scheduling.generation.requests import (
    EngineLimits,
    GenerationRequest,
    Waiting,
)
from batchedmodel_scheduling.generation.token_costs import ReportedCosts
from batchedmodel_scheduling.latency.step_times import StepCost
from support.generation_requests import request

TOKEN_SECONDS = 0.1
USUAL_TOKENS = 100
"""So answers are believed to take ten seconds."""


LIMITS = EngineLimits(
    max_sequences=8,
    max_tokens_per_step=64,
    blocks=100,
    block_tokens=16,
    cost=StepCost(base=TOKEN_SECONDS, prefill_token=0.0, sequence=0.0),
)


class World:
    """Time, and what was learnt of some models."""

    def __init__(self, *keys: str) -> None:
        self.now = 0.0
        self.answers = Estimates(ReportedCosts(LIMITS))
        for _ in range(20):
            for key in keys:
                for max_tokens in (None, 120, 4096):
                    one = request(key=key)._replace(max_tokens=max_tokens)
                    self.answers.learn_length(one, USUAL_TOKENS)

    def ask(
        self, key: str, allowed: float, max_tokens: int | None = None
    ) -> GenerationRequest | None:
        """The request, where it is tried; None where it is refused."""
        one = request(key=key, arrived=self.now, patience=allowed, whole=True)
        one = one._replace(max_tokens=max_tokens)
        return one if self.answers.takes(one, self.now) else None

    def tried(self, key: str, allowed: float, max_tokens: int | None = None) -> GenerationRequest:
        one = self.ask(key, allowed, max_tokens)
        assert one is not None
        return one

    def ends(self, one: GenerationRequest, output_tokens: int | None) -> None:
        waiting = Waiting(one, work=0.0, target=None)
        running = Running(waiting, one.arrived)
        self.answers.whole_ended(running, self.now, output_tokens)

    def fails(self, key: str, allowed: float) -> None:
        """One is tried, and has not ended when its time is over."""
        one = self.tried(key, allowed)
        self.now += allowed
        self.ends(one, None)


def test_one_of_a_kind_is_tried_at_a_time_and_none_for_a_while_after_a_failure() -> None:
    world = World("a")
    one = world.tried("a", 4.0)
    assert world.ask("a", 4.0) is None
    world.now += 4.0
    world.ends(one, None)
    world.now += TRIAL_PAUSE_SECONDS - 0.1
    assert world.ask("a", 4.0) is None
    world.now += 0.2
    assert world.ask("a", 4.0)


def test_a_trial_that_ends_well_lets_all_of_its_kind_in() -> None:
    world = World("a")
    one = world.tried("a", 4.0)
    world.now += 0.2
    world.ends(one, 2)
    assert world.ask("a", 4.0)
    assert world.ask("a", 4.0)


def test_failures_of_one_model_keep_nobody_from_trying_another() -> None:
    world = World("a", "b")
    world.tried("a", 4.0)
    assert world.ask("b", 4.0)
    world = World("a", "b")
    world.fails("a", 4.0)
    assert world.ask("b", 4.0)


def test_failures_of_long_answers_keep_nobody_from_trying_short_ones() -> None:
    world = World("a")
    world.tried("a", 4.0, 4096)
    assert world.ask("a", 4.0, 120)


def test_who_allows_too_little_time_keeps_nobody_out_who_allows_more() -> None:
    world = World("a")
    world.fails("a", 0.3)
    assert world.ask("a", 0.3) is None
    assert world.ask("a", 4.0)


def test_who_leaves_keeps_nobody_out_who_would_have_stayed() -> None:
    world = World("a")
    one = world.tried("a", 4.0)
    world.now += 0.3
    world.ends(one, None)
    assert world.ask("a", 4.0)
    world = World("a")
    one = world.tried("a", 4.0)
    world.answers.gone(one)
    assert world.ask("a", 4.0), "nor who leaves before it goes"


events = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([None, 120, 4096]),
        st.floats(0.2, 9.0),
        st.floats(0.0, 1.0) | st.just(1.0),
        st.floats(0.0, 12.0),
    ),
    max_size=60,
)


@given(events)
def test_who_is_refused_shares_its_model_with_a_trial_that_had_as_much_time(
    events: list[tuple[str, int | None, float, float, float]],
) -> None:
    world = World("a", "b")
    failed = list[tuple[str, int | None, float, float]]()
    running = list[tuple[float, GenerationRequest]]()
    for key, max_tokens, allowed, part, pause in events:
        one = world.ask(key, allowed, max_tokens)
        same = [other for _, other in running if (other.key, other.max_tokens) == (key, max_tokens)]
        if one is not None:
            assert not same, "one of a kind at a time"
            running.append((world.now + part * allowed, one))
        elif not same:
            assert any(
                (key, max_tokens) == (other, most)
                and world.now < at + TRIAL_PAUSE_SECONDS
                and allowed < 1.25 * had
                for other, most, at, had in failed
            )
        until = world.now + pause
        for at, ended in sorted(running, key=lambda entry: entry[0]):
            if at <= until:
                running.remove((at, ended))
                world.now = at
                world.ends(ended, None)
                failed.append((str(ended.key), ended.max_tokens, at, at - ended.arrived))
        world.now = until
