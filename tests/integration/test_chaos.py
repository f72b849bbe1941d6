"""A storm of callers and faults over real processes; `make soak` lets it rage for longer."""

import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import Outcome, Rejection
from compile_modules import compiled_modules
from load_generator import cache_folder
from support.books import assert_all_are_settled, settled
from support.chain import Chain, running_chain
from support.chaos import Chaos
from support.crowd import Crowd
from support.process_memory import peak_bytes, resident_bytes
from support.recovery import lateness, recovery

pytestmark = [
    pytest.mark.timeout(1800),  # the first who wants what is compiled compiles it
    pytest.mark.alone,
]

HANDLER = "support.storm_handlers:Bitten"
MAX_BODY_BYTES = 2**20
GROWTH_BYTES = 64 * 2**20
RECOVERY_SECONDS = 2.0
CALM_SHARE = 0.9
"""Of those who ask for one row between two faults so many are answered at least."""

DEVICE = {"fixedSeconds": "0.005", "rowSeconds": "0.0001"}
SETTINGS = BatchSettings(max_batch_size=32, max_queue_size=512, request_timeout_seconds=5.0)
RATE = 100.0

SLOW_DEVICE = {"fixedSeconds": "0.002", "rowSeconds": "0.009875"}
SLOW_BATCH_SECONDS = 0.16
SILENT_BATCHES = 4
"""Nobody is answered for so long at most: 0.42 s were measured on a busy machine."""
SLOW_LIMIT = 100.0
"""Rows a second that it serves at most, in batches of 16."""
SLOW_SETTINGS = BatchSettings(max_batch_size=16, max_queue_size=40, request_timeout_seconds=5.0)
"""What waits is served within half a second, so that recovery is not the wait of a long queue."""
OVERLOAD = 10.0
FLOOD = {"single": 50.0, "list": 47.0, "poison": 2.0, "oversize": 1.0}
FLOOD_LISTS = (8, 24, 40)
FLOOD_RATE = 180.0
"""Callers a second: twice as many as make ten times the limit, should the machine be busy."""
BUSY_SHARE = 0.9


async def test_in_a_storm_everyone_is_told_once_and_the_truth(
    tmp_path: Path, chaos_seconds: float
) -> None:
    async with chain_of(tmp_path, DEVICE, SETTINGS) as chain:
        before = resident_bytes(chain.sidecar.pid)
        crowd = Crowd(chain, seed=int(chaos_seconds))
        chaos = Chaos(chain, crowd, SETTINGS)
        await chaos.rage(chaos_seconds, RATE)
        diary = crowd.diary
        calm = chaos.told_in_calm()
        print(diary.told, calm, *chaos.told(), sep="\n")  # noqa: T201  # shown when it fails
        assert not diary.complaints
        assert calm["right"] > CALM_SHARE * calm.total()
        assert diary.told["venom: failed"] > 0
        assert [one for one in chaos.recoveries if one.own > RECOVERY_SECONDS] == []
        await assert_it_is_sound(chain)
        assert max(*chaos.resident, resident_bytes(chain.sidecar.pid)) - before < GROWTH_BYTES


async def test_of_ten_times_what_the_device_serves_it_serves_what_it_can(
    tmp_path: Path, flood_seconds: float
) -> None:
    async with chain_of(tmp_path, SLOW_DEVICE, SLOW_SETTINGS) as chain:
        before = {part: resident_bytes(part.pid) for part in (chain.sidecar, chain.model)}
        crowd = Crowd(chain, seed=int(flood_seconds), kinds=FLOOD, lists=FLOOD_LISTS)
        diary = crowd.diary
        began = time.monotonic()
        async with lateness() as late:
            await crowd.come(lambda: time.monotonic() < began + flood_seconds, FLOOD_RATE)
            # Whoever was accepted last has been answered by now.
            took, lag = time.monotonic() - began, late.total()
        asked, answered = diary.rows_asked, diary.rows_answered
        share = answered / (SLOW_LIMIT * took)
        silence = max(after - one for one, after in pairwise([began, *diary.answered_at]))
        told = Counter(diary.statuses)
        after_flood = await recovery("flood", crowd.is_served, calm=1.0)
        print(  # noqa: T201  # shown when it fails
            f"{asked} rows in {took:.1f} s, {asked / took / SLOW_LIMIT:.1f} times the limit; "
            f"{answered} answered, {share:.1%} of it; longest silence {silence:.2f} s; "
            f"well {after_flood.took:.3f} s later; this process was late by {lag:.3f} s; {told}"
        )
        assert not diary.complaints
        # While this process and its timers were late, nobody came; the chain may have been as well.
        assert asked >= OVERLOAD * SLOW_LIMIT * (took - lag)
        assert answered >= BUSY_SHARE * SLOW_LIMIT * (took - lag)
        assert silence < SILENT_BATCHES * SLOW_BATCH_SECONDS + lag
        assert after_flood.own <= RECOVERY_SECONDS
        # Nobody was accepted in vain, and the books of both sides agree.
        assert set(told) <= {200, 400, 413, 429}
        await assert_it_is_sound(chain)
        assert await settled(chain, Outcome.COMPLETED) == diary.statuses[200]
        rejected = "batchedmodel_requests_rejected_total"
        for status, reason in (
            (400, Rejection.INVALID),
            (413, Rejection.TOO_LARGE),
            (429, Rejection.QUEUE_FULL),
        ):
            assert await chain.metric(rejected, reason=reason.value) == told[status]
        for part, resident in before.items():
            assert peak_bytes(part.pid) - resident < GROWTH_BYTES


@pytest.mark.nightly
async def test_faults_amid_such_a_flood_cost_nobody_more_than_they_must(
    tmp_path: Path, flood_seconds: float
) -> None:
    async with chain_of(tmp_path, SLOW_DEVICE, SLOW_SETTINGS) as chain:
        before = resident_bytes(chain.sidecar.pid)
        crowd = Crowd(chain, seed=int(flood_seconds), kinds=FLOOD, lists=FLOOD_LISTS)
        chaos = Chaos(chain, crowd, SLOW_SETTINGS, full=True)
        await chaos.rage(flood_seconds, FLOOD_RATE)
        diary = crowd.diary
        print(diary.told, *chaos.told(), sep="\n")  # noqa: T201  # shown when it fails
        assert not diary.complaints
        assert [one for one in chaos.recoveries if one.own > RECOVERY_SECONDS] == []
        # To be told that the queue is full is not to be served: somebody must be, and as soon.
        for one in chaos.recoveries:
            served = next(at for at in diary.answered_at if at > one.ended)
            late = chaos.lateness.between(one.ended, served)
            assert served - one.ended - late <= RECOVERY_SECONDS, one
        await assert_it_is_sound(chain)
        assert max(*chaos.resident, resident_bytes(chain.sidecar.pid)) - before < GROWTH_BYTES


def chain_of(
    folder: Path, device: Mapping[str, str], settings: BatchSettings
) -> AbstractAsyncContextManager[Chain]:
    return running_chain(
        folder,
        handler=HANDLER,
        parameters=device,
        settings=settings,
        max_body_bytes=MAX_BODY_BYTES,
        compiled=compiled_modules(cache_folder(os.environ)),  # as in the sidecar's image
    )


async def assert_it_is_sound(chain: Chain) -> None:
    """Nothing is left, and the books balance; a sidecar that was killed took its own along."""
    await chain.until("batchedmodel_inflight_requests", lambda value: value == 0)
    await assert_all_are_settled(chain)
    assert (await chain.admin("/live"))[0] == 200
    for gauge in ("queue_length", "queue_requests", "inflight_batches", "executing_items"):
        assert await chain.metric(f"batchedmodel_{gauge}") == 0


@pytest.fixture
def chaos_seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--chaos-seconds"))


@pytest.fixture
def flood_seconds(chaos_seconds: float) -> float:
    return max(6.0, chaos_seconds / 10)
