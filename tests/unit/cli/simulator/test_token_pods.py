"""A simulated pod of a language model: the real admission before an engine."""

import random

import pytest

from batchedmodel_cli.simulator.token_engine import Call, EngineFigures, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod, Watcher
from batchedmodel_cli.simulator.token_verdicts import TokenVerdict, served
from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.generation.admission import Admission, AdmissionSettings

FIGURES = EngineFigures(sequences=8, step_seconds=0.02, prefill_seconds_per_token=1e-4)
FIRST, TOKEN = 0.5, 0.05
PLAIN = AdmissionSettings()


class Noted(Watcher):
    """What it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def came(self, call: Call, work: float, now: float) -> None:
        assert work > 0
        self.said.append("came")

    def released(self, call: Call, now: float) -> None:
        self.said.append("released")

    def began(self, call: Call, now: float) -> None:
        assert call.first_at == now
        self.said.append("began")

    def ended(self, call: Call, now: float) -> None:
        self.said.append("ended")

    def looked(self, usage: float, now: float) -> None:
        assert 0 <= usage <= 1


def pod(
    settings: AdmissionSettings | None = PLAIN, watcher: Watcher | None = None
) -> TokenPod[TokenEngine]:
    admission = None if settings is None else Admission(settings)
    return TokenPod(TokenEngine(FIGURES), admission, watcher=watcher)


def calls(rate: float, count: int, *, patience: float = 30.0, seed: int = 1) -> list[Call]:
    drawn, at, found = random.Random(seed), 0.0, []
    for number in range(count):
        at += drawn.expovariate(rate)
        output = drawn.randint(10, 30)
        found.append(
            Call(
                number=number,
                share=Share("a"),
                prompt=100,
                output=output,
                arrived=at,
                patience=patience,
            )
        )
    return found


def verdict(
    rate: float, settings: AdmissionSettings | None = PLAIN, count: int = 600
) -> TokenVerdict:
    its = calls(rate, count)
    return served(
        [(pod(settings), its)],
        FIGURES,
        begins=its[count // 4].arrived,
        ends=its[-1].arrived + 1e-9,
        first_token_seconds=FIRST,
        token_seconds=TOKEN,
    )


RATE = 1 / FIGURES.work(100, 20)


def test_a_call_comes_is_released_and_ends_with_its_tokens() -> None:
    noted = Noted()
    one = pod(watcher=noted)
    its = calls(1.0, 1)[0]
    one.arrive(its)
    one.advance(its.arrived + 5)
    assert noted.said == ["came", "released", "began", "ended"]
    assert (one.idle, one.now) == (True, its.arrived + 5)
    assert its.first_token == pytest.approx(0.001 + 0.02 + 0.01)
    assert its.between_tokens == pytest.approx(0.02)
    assert its.good(FIRST, TOKEN)
    assert not its.good(0.01, TOKEN)
    assert not its.good(FIRST, 0.01)


def test_half_of_what_it_can_do_is_all_in_time() -> None:
    found = verdict(0.5 * RATE)
    assert found.in_time_share >= 0.99
    assert found.used_share == pytest.approx(0.5, abs=0.06)
    assert found.gone_shares == {}
    assert found.goodput == pytest.approx(0.5 * RATE, rel=0.15)
    assert found.first_token is not None
    assert found.first_token.p50 < 0.1


def test_too_much_is_answered_at_what_the_engine_can_do_and_the_rest_is_told_why() -> None:
    settings = AdmissionSettings(first_token_seconds=FIRST, lateness=Lateness.REFUSE)
    found = verdict(1.5 * RATE, settings)
    assert found.used_share >= 0.9
    assert found.in_time_share >= 0.6
    assert set(found.gone_shares) <= {Rejection.PREDICTED_LATE.value, Outcome.SHED.value}
    whole = found.in_time_share + found.late_share + sum(found.gone_shares.values())
    assert whole == pytest.approx(1.0)
    straight = verdict(1.5 * RATE, None)
    assert straight.in_time_share < 0.5 * found.in_time_share


def test_a_full_queue_refuses() -> None:
    settings = AdmissionSettings(max_queue_size=4, max_concurrent_requests=8)
    found = verdict(3 * RATE, settings)
    assert found.gone_shares[Rejection.QUEUE_FULL.value] > 0.5


def test_callers_whose_patience_ends_leave_the_engine_alone() -> None:
    one = pod(AdmissionSettings(max_concurrent_requests=64))
    its = calls(20 * RATE, 100, patience=0.3)
    for call in its:
        one.arrive(call)
    one.advance(60.0)
    assert one.idle
    assert {None, Outcome.EXPIRED} <= {call.gone for call in its}
    assert all((call.gone is None) == (call.ended_at is not None) for call in its)
    assert all(call.first_token <= 0.3 + 1e-9 for call in its if call.ended_at is not None)
    assert not one.engine.running
    assert not one.engine.waiting


def test_equal_calls_give_equal_verdicts() -> None:
    assert verdict(RATE) == verdict(RATE)


def test_nothing_that_counts_gives_an_empty_verdict() -> None:
    found = served([], FIGURES, begins=0.0, ends=1.0, first_token_seconds=None, token_seconds=None)
    assert (found.requests, found.first_token, found.between_tokens) == (0, None, None)
    assert found.used_share == 0.0
