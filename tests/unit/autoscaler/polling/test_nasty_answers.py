"""Whatever number a pod answers: it is refused by name, or every metric stays a finite number."""

import asyncio
import json
import logging
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from batchedmodel_autoscaler.polling.poller import Poller
from batchedmodel_autoscaler.polling.stats_document import stats_from_mapping
from batchedmodel_autoscaler.replicas.formula import (
    Unseen,
    outstanding,
    queue_length,
    queue_wait,
    required_replicas,
)
from batchedmodel_autoscaler.telemetry import Telemetry
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats
from batchedmodel_kube.admin_client import NoAnswer, Whom
from support.autoscaler_world import CALM, KEY, TARGET, busy, fleet, pod
from support.examples import examples

NASTY = (
    *("Infinity", "-Infinity", "NaN", "1e400", "-1e400", "9" * 400, "-" + "9" * 400, "1e308"),
    *("1e-320", "5e-324", "1e-9", "1e-6", "-1", "-0.0", "0", "0.5", "1", "7", "1e6", "1e9"),
    *("1000000000", "1e12", "1e15", "1e18", "true", "false", "null", '"1"', "[]", "{}", "[1e400]"),
)
"""JSON texts, as Python's own reader takes them."""
NUMBERS = (
    *("age_seconds", "backlog_work", "queue_length", "outstanding", "max_batch_size"),
    *("max_concurrent_batches", "sustainable_share", "waited_row_seconds", "released_rows"),
    *("rows_per_second", "shortest_latency_seconds"),
)
NASTY_FIELDS = st.fixed_dictionaries(
    {},
    optional={name: st.sampled_from(NASTY) for name in NUMBERS}
    | {
        "offered_work": st.one_of(
            st.sampled_from(NASTY),
            st.lists(st.sampled_from(NASTY), min_size=BUCKETS, max_size=BUCKETS).map(
                lambda found: f"[{','.join(found)}]"
            ),
            st.sampled_from(NASTY).map(lambda one: f"[{','.join([one] * BUCKETS)}]"),
        ),
        "instance": st.sampled_from(['"first"', '"second"', "null", "[[]]"]),
        "profile_known": st.sampled_from(["true", "false", "null", "NaN"]),
    },
)


def answered(fields: dict[str, str]) -> SidecarStats | None:
    """The stats of a plain answer with some fields in other words; None where they are refused."""
    document = {name: json.loads(text) for name, text in fields.items()}
    try:
        return stats_from_mapping(CALM.to_mapping() | document)
    except InvalidInput:
        return None


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("text", ["Infinity", "1e400", "9" * 400, "NaN", "-1", "1e300"])
def test_a_number_that_is_none_to_count_with_is_refused_by_name_value_and_rule(
    name: str, text: str
) -> None:
    for field, found in ((name, text), ("offered_work", f"[{','.join([text] * BUCKETS)}]")):
        document = CALM.to_mapping() | {field: json.loads(found)}
        with pytest.raises(InvalidInput, match=rf"^{field}: .+ is not within \S+ to \S+$"):
            stats_from_mapping(document)


@pytest.mark.parametrize("name", ["max_batch_size", "max_concurrent_batches"])
@pytest.mark.parametrize("count", [0, -3, True])
def test_a_count_that_must_be_one_is_at_least_one(name: str, count: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        stats_from_mapping(CALM.to_mapping() | {name: count})


@pytest.mark.parametrize("text", ["1e-320", "1e-9"])
def test_a_share_or_a_rate_that_nothing_can_be_divided_by_is_refused(text: str) -> None:
    for name in ("sustainable_share", "rows_per_second"):
        with pytest.raises(InvalidInput, match=name):
            stats_from_mapping(CALM.to_mapping() | {name: json.loads(text)})


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(answers=st.lists(NASTY_FIELDS, min_size=1, max_size=3), silence=st.sampled_from([0.0, 30.0]))
def test_whatever_is_answered_is_refused_or_makes_finite_metrics(
    answers: list[dict[str, str]], silence: float
) -> None:
    known, now = fleet([pod(1), pod(2)]), 1000.0
    for fields in answers:
        for number in (1, 2):
            told = answered(fields) if number == 1 else CALM
            if told is not None:
                known.answered(f"uid-{number}", told, now)
        now += 12.0
    sight = known.observation(KEY, now + silence)
    for decide in (required_replicas, queue_length, outstanding, queue_wait):
        try:
            verdict = decide(sight, TARGET)
        except Unseen:
            continue
        assert math.isfinite(verdict.value)
        assert "nan" not in verdict.sentence
        assert "inf" not in verdict.sentence
    capacity = known.capacity(KEY)
    assert capacity is not None
    json.dumps(capacity.to_mapping(at=""), allow_nan=False)


class _Broken(RuntimeError):
    pass


class _Panic(BaseException):
    pass


@pytest.mark.looptime
@pytest.mark.parametrize("kind", [_Broken, _Panic])
async def test_what_nobody_foresaw_in_one_pods_answer_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    async def ask(address: str, whom: Whom) -> SidecarStats:
        await asyncio.sleep(0.01)
        if address == "10.0.0.1":
            raise kind
        if address == "10.0.0.3":
            raise NoAnswer("no answer")
        return busy(0.4)

    known = fleet([pod(1), pod(2), pod(3)])
    loop = asyncio.get_running_loop()
    poller = Poller(known, ask, telemetry=Telemetry(CollectorRegistry()))
    for number in (1, 2, 3):
        poller.follow(f"uid-{number}")
    polling = asyncio.create_task(poller.run())
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(60)
    assert not polling.done()
    assert sorted(one.answers for one in known.observation(KEY, loop.time()).pods) == [
        False,
        False,
        True,
    ]
    (line,) = caplog.records
    assert "10.0.0.1" in line.getMessage()
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)


def test_a_rate_of_nothing_is_no_rate() -> None:
    told = stats_from_mapping(CALM.to_mapping() | {"rows_per_second": 0})
    assert told.rows_per_second is None
