"""How the link to our model server looks for a server that is not there."""

import asyncio
from pathlib import Path

import pytest

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_scheduling.core.policy import MemoryCap
from batchedmodel_sidecar.adapters.served import ServedAdapters
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_slots import SharedSlots
from batchedmodel_sidecar.model import ReadyModel

pytestmark = pytest.mark.looptime


class Listener:
    """Counts in vain."""

    looks = 0

    def model_ready(self, model: ReadyModel) -> None:
        raise AssertionError("there is no server")

    def model_lost(self, reason: str) -> None:
        assert reason == "the model server cannot be reached"
        self.looks += 1

    def profile_measured(self, profile: Profile) -> None:
        raise AssertionError("nothing was measured")

    def memory_bound(self, cap: MemoryCap) -> None:
        raise AssertionError("there is no server")


async def test_who_was_away_for_long_is_found_within_half_a_second_and_looked_for_in_peace(
    tmp_path: Path,
) -> None:
    listener = Listener()
    link = NativeLink(
        "m",
        str(tmp_path / "nobody.sock"),
        listener,
        SharedSlots(1),
        ByteBudget(1),
        ServedAdapters("m"),
    )
    following = asyncio.create_task(link.follow())
    await asyncio.sleep(60.0)
    before = listener.looks
    await asyncio.sleep(60.0)
    assert listener.looks - before == pytest.approx(2 * 60, abs=2)
    following.cancel()
    await link.close()
