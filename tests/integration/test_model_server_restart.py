"""A model server that starts again: its phases, and the file that it leaves for the next start.

What is measured in an idle moment goes by times, which depend on whatever else runs: so the model
here mostly sleeps, and `profiling/test_trial` has the rest in simulated time.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_contract.link.model_state import ModelState
from support.checkpoints import text_checkpoint
from support.model_server_process import model_server
from support.steady_handler import A_PASS

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

HANDLER = "support.steady_handler:Steady"


class Start(NamedTuple):
    """What a process said once it was ready, and what it left behind."""

    at_first: Profile
    profile: Profile
    """After some idle moments."""
    passes: int
    """That it took until then."""
    told: str
    kept: Path
    content: str

    @property
    def document(self) -> Any:
        """What is in the file."""
        return json.loads(self.content)


async def start(folder: Path) -> Start:
    source = {"path": str(folder / "model")}
    async with model_server(folder, HANDLER, source=source, max_batch_size=2) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        at_first = await server.hop.profile()
        profile = await server.hop.whole_profile()
        assert await server.stop() == 0
        passes = sum(A_PASS in line for line in server.log)
    # The same model on the same machine has the same key, and so the same file.
    [kept] = (folder / "cache" / "profiles").iterdir()
    return Start(at_first, profile, passes, event.detail, kept, kept.read_text())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def first(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Of the first process of its folder."""
    folder = tmp_path_factory.mktemp("starts")
    text_checkpoint(folder / "model", "Bert")
    return await start(folder)


async def started_again(first: Start, content: str) -> Start:
    """Another process of that folder, which finds this in the file."""
    first.kept.write_text(content)
    return await start(first.kept.parents[2])


async def test_a_start_tells_its_phases_and_replaces_a_damaged_profile(first: Start) -> None:
    phases = ["process", "fetch", "imports", "load", "self-tests", "warm-up"]
    profile = first.profile
    assert first.at_first.partial
    assert set(first.at_first.points) < set(profile.points)
    assert sorted(name for name, _ in profile.start_up) == sorted(phases)
    assert profile.start_up[0][0] == "process"
    assert all(seconds > 0 for _, seconds in profile.start_up)
    assert all(f"{phase} " in first.told for phase in phases)
    assert not profile.cached
    assert profile.sharing == "packed"
    assert profile_from_mapping(first.document["profile"]).points == profile.points
    second = await started_again(first, "{")
    assert not second.profile.cached
    assert (second.kept, second.document["key"]) == (first.kept, first.document["key"])
    assert profile_from_mapping(second.document["profile"]).points == second.profile.points


async def test_a_second_process_takes_over_what_the_first_has_kept_and_runs_no_grid(
    first: Start,
) -> None:
    second = await started_again(first, first.content)
    assert not first.profile.cached
    assert first.passes > 2 * len(first.profile.points)
    assert second.profile.cached
    assert second.passes <= 4, "one shape, which is warmed once and then timed three times at most"
    assert second.profile.points == first.profile.points
    assert second.profile.sharing == first.profile.sharing
    assert second.profile.sharing_reason == first.profile.sharing_reason
    assert dict(second.profile.start_up)["warm-up"] < dict(first.profile.start_up)["warm-up"]
