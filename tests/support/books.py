"""What the sidecar's metrics say of calls that came and went, for tests over real sockets."""

from typing import Final

from batchedmodel_contract.outcomes import Outcome, Rejection
from support.chain import Chain

_ON_THEIR_WAY: Final = ("batchedmodel_queue_requests", "batchedmodel_inflight_requests")


async def settled(chain: Chain, outcome: Outcome) -> float:
    """How many calls ended so."""
    return await chain.metric("batchedmodel_requests_settled_total", outcome=outcome.value)


async def assert_books_balance(chain: Chain) -> None:
    """Every call that was offered is told of, and none is on its way any more."""
    for gauge in _ON_THEIR_WAY:
        await chain.until(gauge, lambda value: value == 0)
    await assert_all_are_settled(chain)


async def assert_all_are_settled(chain: Chain) -> None:
    """As `assert_books_balance`, and at once: nothing is waited for."""
    offered = await chain.metric("batchedmodel_requests_offered_total")
    accepted = await chain.metric("batchedmodel_requests_accepted_total")
    name = "batchedmodel_requests_rejected_total"
    rejected = [await chain.metric(name, reason=reason.value) for reason in Rejection]
    assert offered == accepted + sum(rejected)
    assert accepted == sum([await settled(chain, outcome) for outcome in Outcome])
