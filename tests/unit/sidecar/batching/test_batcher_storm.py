"""A batcher through whatever may happen: everyone is settled once, and the books balance."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, PolicyName
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.queue.items import Priority
from batchedmodel_sidecar.errors import Busy, Expired, GivenUp, Lost, Rejected, Unserved
from batchedmodel_sidecar.protocols.headers import RequestOptions
from support.sidecar_world import MODEL, World, rows_of, world

pytestmark = pytest.mark.looptime

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.slow
async def test_whatever_happens_everyone_is_settled_once_and_the_books_balance() -> None:
    """Random callers in random haste, departures, failures, poisoned rows, edits, restarts."""
    storms = []
    for seed in range(20):
        try:
            storms.append(await _storm(random.Random(seed), idempotent=seed % 4 > 0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    calls, answered = map(sum, zip(*storms, strict=True))
    assert answered > calls / 5, "a server that nobody reaches shows nothing"


async def _storm(chance: random.Random, *, idempotent: bool) -> tuple[int, int]:
    """Calls that were sent, and answered, in front of a server of ours or of several workers.

    The books are compared with what callers and server see whenever they change, and with what was
    sent whenever nothing moves.
    """
    bounds = replace(SETTINGS, max_queue_size=24, request_timeout_seconds=1.0)
    w = world(bounds, attached=False, idempotent=idempotent)
    w.server.side_by_side = chance.random() < 0.6
    w.server.falls_as_one = not w.server.side_by_side or chance.random() < 0.5
    model = replace(MODEL, depth=1) if w.server.side_by_side else MODEL
    w.server.statuses[b"bad"] = 400
    w.server.deadly.add(b"kill")
    w.batcher.attach(model)
    tasks: list[asyncio.Task[object]] = []
    sent_rows = 0
    for _ in range(300):
        match chance.choices(["send", "leave", "fail", "heal", "edit", "lose", "find", "wait"],
                             [12, 3, 1, 4, 1, 1, 4, 9])[0]:  # fmt: skip
            case "send":
                kinds = [*[b"a", b"bb"] * 8, b"bad", chance.choice([b"a", b"kill"])]
                rows = [chance.choice(kinds) for _ in range(chance.choice([1, 1, 2, 6, 20]))]
                options = RequestOptions(
                    timeout=chance.choice([None, None, 0.001, 0.03, 5.0]),
                    priority=chance.choice([None, *Priority]),
                )
                tasks.append(asyncio.ensure_future(w.send(*rows, options=options)))
                sent_rows += len(rows)
            case "leave" if tasks:
                await asyncio.sleep(0)  # who leaves has come
                chance.choice(tasks).cancel()
            case "fail":
                w.server.failure = chance.choice(
                    [Unserved("broken", status=500), Lost("gone"), Busy("later", retry_after=0.1)]
                )
            case "heal":
                w.server.failure = None
            case "edit":
                w.batcher.configure(_edited(chance, side_by_side=w.server.side_by_side))
            case "lose":
                w.batcher.detach()
            case "find":
                w.batcher.attach(model)
            case _:
                await asyncio.sleep(chance.random() * 0.05)
                await _at_rest(w)
                assert (w.ledger.offered, w.ledger.rows_offered) == (len(tasks), sent_rows)
    w.batcher.attach(model)
    w.server.failure = None
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60.0)
    ends = (Unserved, Expired, GivenUp, Rejected, asyncio.CancelledError)
    assert all(isinstance(r, ends) for r in results if isinstance(r, BaseException))
    await asyncio.sleep(31.0)  # for batches that nobody wants any more, and the longest pause
    await _at_rest(w)
    assert (w.ledger.offered, w.ledger.rows_offered) == (len(tasks), sent_rows)
    assert w.ledger.accepted == w.ledger.settled.total()
    refused = Counter(r.reason for r in results if isinstance(r, Rejected))
    assert w.ledger.rejected == refused
    answered = sum(not isinstance(r, BaseException) for r in results)
    assert w.ledger.settled[Outcome.COMPLETED] >= answered
    assert (w.ledger.rows_live, w.ledger.rows_waiting, w.ledger.rows_at_model.value) == (0, 0, 0)
    assert rows_of(await w.send(b"when it is over")) == [b"when it is over"]
    assert b"pending" not in b"".join(w.recorder.csv())
    await w.batcher.close()
    return len(tasks), answered


def _edited(chance: random.Random, *, side_by_side: bool) -> BatchSettings:
    target, lateness = chance.choice(
        [(None, Lateness.SERVE), (0.05, Lateness.SERVE), (0.05, Lateness.REFUSE)]
    )
    size = chance.randint(1, 8)
    return replace(
        SETTINGS,
        policy=chance.choice(list(PolicyName)),
        max_batch_size=size,
        max_concurrent_batches=chance.randint(1, 5) if side_by_side else 1,
        max_queue_size=chance.randint(size, 24),
        target_seconds=target,
        lateness=lateness,
        trust_priority=chance.random() < 0.5,
    )


async def _at_rest(w: World) -> None:
    """Compare the books when what happens in this moment has happened."""
    for _ in range(5):
        await asyncio.sleep(0)
    if check := getattr(w.ledger, "check_at_rest", None):  # not of compiled ones
        check()
