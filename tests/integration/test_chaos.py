"""A storm of callers and faults over real processes; `make soak` lets it rage for longer."""

import statistics
from pathlib import Path

import pytest

from batchedmodel_contract.batching import BatchSettings
from support.books import assert_all_are_settled
from support.chain import running_chain
from support.chaos import Chaos
from support.process_memory import resident_bytes

DEVICE = {"fixedSeconds": "0.005", "rowSeconds": "0.0001"}
SETTINGS = BatchSettings(max_batch_size=32, max_queue_size=512, request_timeout_seconds=5.0)
RATE = 150.0
GROWTH_BYTES = 64 * 2**20
RECOVERY_SECONDS = 2.0
LONGEST_RECOVERY_SECONDS = 3 * SETTINGS.request_timeout_seconds


async def test_in_a_storm_everyone_is_told_once_and_the_truth(
    tmp_path: Path, chaos_seconds: float
) -> None:
    async with running_chain(
        tmp_path,
        handler="support.storm_handlers:Bitten",
        parameters=DEVICE,
        settings=SETTINGS,
        max_body_bytes=2**20,
    ) as chain:
        before = resident_bytes(chain.sidecar.pid)
        chaos = Chaos(chain, SETTINGS, seed=int(chaos_seconds))
        await chaos.rage(chaos_seconds, RATE)
        diary = chaos.diary
        print(diary.told, diary.faults, diary.recoveries)  # noqa: T201  # shown when it fails
        assert not diary.complaints
        assert diary.told["single: right"] > 0
        assert diary.told["venom: 500"] > 0
        assert diary.faults["kill"] > 0
        assert diary.faults["kill_sidecar"] > 0
        # At the storm's height, or in batches of one, a question may be accepted and expire.
        assert statistics.median(diary.recoveries) <= RECOVERY_SECONDS
        assert max(diary.recoveries) <= LONGEST_RECOVERY_SECONDS
        await chain.until("batchedmodel_inflight_requests", lambda value: value == 0)
        # Those of the last sidecar: one that is killed takes its own along.
        await assert_all_are_settled(chain)
        for gauge in ("queue_length", "queue_requests", "inflight_batches", "executing_items"):
            assert await chain.metric(f"batchedmodel_{gauge}") == 0
        assert max(*diary.resident, resident_bytes(chain.sidecar.pid)) - before < GROWTH_BYTES
        assert (await chain.admin("/live"))[0] == 200


@pytest.fixture
def chaos_seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--chaos-seconds"))
