"""What the sidecar's metrics say of calls that came and went, for tests over real sockets."""

import asyncio
from typing import Final

from batchedmodel_contract.outcomes import Outcome, Rejection
from support.chain import START_SECONDS, Chain, sample

_ON_THEIR_WAY: Final = ("batchedmodel_queue_requests", "batchedmodel_inflight_requests")


async def settled(chain: Chain, outcome: Outcome) -> float:
    """How many calls ended so."""
    return await chain.metric("batchedmodel_requests_settled_total", outcome=outcome.value)


async def assert_books_balance(chain: Chain) -> None:
    """Every call that was offered is told of, once none is on its way any more."""
    async with asyncio.timeout(START_SECONDS):
        metrics = await chain.metrics()
        while any(sample(metrics, gauge) for gauge in _ON_THEIR_WAY):
            await asyncio.sleep(0.01)
            metrics = await chain.metrics()
    _assert_balanced(metrics)


async def assert_all_are_settled(chain: Chain) -> None:
    """As `assert_books_balance`, and at once: nothing is waited for."""
    _assert_balanced(await chain.metrics())


def _assert_balanced(metrics: str) -> None:
    """Of one moment: one who left may only be met by the sidecar between two questions."""
    offered = sample(metrics, "batchedmodel_requests_offered_total")
    accepted = sample(metrics, "batchedmodel_requests_accepted_total")
    refused = "batchedmodel_requests_rejected_total"
    rejected = [sample(metrics, refused, reason=reason.value) for reason in Rejection]
    assert offered == accepted + sum(rejected)
    ended = "batchedmodel_requests_settled_total"
    assert accepted == sum(sample(metrics, ended, outcome=one.value) for one in Outcome)
