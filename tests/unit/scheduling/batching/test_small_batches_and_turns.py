"""Tenants have turns as soon as more waits than leaves next, however few items a batch holds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, PolicyName
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.queue.items import Item
from support.scheduling import Served, measured, serve
from support.strategies import an_item

TOKEN = 2e-5
LONG, SHORT = 500, 10
PATIENT = 30.0
# Two long rows are 1,000 tokens, 25 ms; 64 of them would be 0.6 s.
SETTINGS = BatchSettings(max_batch_size=64)
PROFILE = measured(
    [(rows, length, 0.005 + TOKEN * rows * length) for rows in (1, 8, 64) for length in (1, 500)],
    CostRule.PACKED,
)


def seconds(lengths: Sequence[int]) -> float:
    return 0.005 + TOKEN * sum(lengths)


def rows_of(
    tenant: str, first: int, times: Sequence[float], length: int, due: float, deadline: float
) -> list[Item]:
    return [
        an_item(
            first + at, arrived=time, length=length, due=time + due, deadline=time + deadline
        )._replace(share=Share(tenant))
        for at, time in enumerate(times)
    ]


def waits(served: Served, items: Sequence[Item]) -> list[float]:
    """Seconds from arrival to answer; an item without one has not been served."""
    return [served.finished[item.id] - item.arrived for item in items]


@pytest.mark.parametrize("policy", [PolicyName.DEADLINE, PolicyName.GREEDY])
@pytest.mark.parametrize("bound", ["tokens", "memory"])
def test_a_clump_smaller_than_the_most_rows_of_a_batch_keeps_no_other_tenant_waiting(
    policy: PolicyName, bound: str
) -> None:
    """Forty rows are 0.5 s in batches of two: another's row was behind them, as 40 are below 64."""
    tokens = 1000 if bound == "tokens" else None
    served_by = new_policy(replace(SETTINGS, policy=policy, max_batch_tokens=tokens), PROFILE)
    if bound == "memory":
        served_by.observe(MemoryCap(cost=1000), 0.0)
    clump = rows_of("a", 0, [0.0] * 40, LONG, PATIENT, PATIENT)
    other = rows_of("b", 100, [0.06, 0.16, 0.26], SHORT, PATIENT, PATIENT)
    served = serve(served_by, [*clump, *other], seconds)
    assert len(served.finished) == 43
    assert max(waits(served, other)) < 0.08


def test_a_flood_that_is_refused_early_gives_up_no_other_tenants_rows() -> None:
    """Of what can be in time fewer rows wait than a full batch has, and turns never began."""
    target = 0.2
    policy = new_policy(replace(SETTINGS, target_seconds=target, lateness=Lateness.REFUSE), PROFILE)
    flood = rows_of("a", 0, [at / 200 for at in range(600)], LONG, target, target)
    times = [0.2 + at / 10 for at in range(26)]
    other = rows_of("b", 1000, times, SHORT, target, target)
    served = serve(policy, [*flood, *other], seconds)
    assert served.late(other) == []
    assert len(served.finished) > 200  # the device's time is not wasted


def test_what_can_be_in_time_together_is_served_without_turns() -> None:
    policy = new_policy(replace(SETTINGS, target_seconds=0.2), PROFILE)
    for item in rows_of("a", 0, [0.0] * 6, LONG, 0.2, PATIENT):
        assert policy.offer(item, 0.0) is None
    for item in rows_of("b", 10, [0.0] * 6, LONG, 0.2, PATIENT):
        assert policy.offer(item, 0.0) is None
    assert not policy.queue.has_turns
