"""Two versions of a model at a time: each request goes to the one that it was read for."""

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest

from batchedmodel_contract.inference.profile import ProfileExtent
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_sidecar.calls import Answer, Call, Row, Value
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel, VersionLease, VersionUsers
from support.sidecar_world import DESCRIPTION, MODEL, World, answered, rows_of, stats_of, world

pytestmark = pytest.mark.looptime

WINDOW = BatchSettings(policy=PolicyName.WINDOW, max_batch_size=4, max_wait_seconds=1.0)


def version(name: str) -> ReadyModel:
    """One that takes the same as every other."""
    return replace(MODEL, description=replace(DESCRIPTION, version=name), users=VersionUsers())


def read_for(model: ReadyModel, row: bytes) -> Call:
    return model.call_of((Row(values=(Value((len(row),), row),), length=len(row)),))


async def asked(here: World, model: ReadyModel, row: bytes) -> Answer:
    """As the front asks."""
    with closing(VersionLease()) as need:
        need.turn_to(model.users)
        return await answered(here.batcher, read_for(model, row))


async def test_rows_that_wait_go_to_the_version_that_was_replaced_and_new_ones_to_the_new() -> None:
    here, old, new = world(WINDOW, attached=False), version("1"), version("2")
    here.batcher.attach(old)
    before = asyncio.create_task(asked(here, old, b"a"))
    await asyncio.sleep(0.1)
    here.batcher.attach(new)
    behind = [asyncio.create_task(asked(here, new, row)) for row in (b"b", b"c")]
    assert rows_of(await before) == [b"a"]
    assert [rows_of(await one) for one in behind] == [[b"b"], [b"c"]]
    assert here.server.versions == ["1", "2"]
    assert here.server.batches == [1, 2]


async def test_what_was_being_read_during_the_swap_is_taken_still() -> None:
    here, old, new = world(attached=False), version("1"), version("2")
    here.batcher.attach(old)
    with closing(VersionLease()) as need:
        need.turn_to(old.users)
        here.batcher.attach(new)
        here.batcher.attach(version("3"))
        assert rows_of(await answered(here.batcher, read_for(old, b"a"))) == [b"a"]
        with pytest.raises(Rejected, match="takes other inputs"):
            await answered(here.batcher, read_for(new, b"a"))
    assert here.server.versions == ["1"]


async def test_with_the_server_its_older_versions_are_lost() -> None:
    here, old = world(WINDOW, attached=False), version("1")
    here.batcher.attach(old)
    waiting = asyncio.create_task(asked(here, old, b"a"))
    await asyncio.sleep(0)
    here.batcher.attach(version("2"))
    here.batcher.detach()
    here.batcher.attach(version("2"))
    with pytest.raises(Unserved, match="replaced by one that takes other inputs"):
        await waiting


async def test_a_replaced_version_is_needed_until_its_last_request_has_ended() -> None:
    users, told = VersionUsers(), []
    with closing(VersionLease()) as first:
        first.turn_to(users)
        with closing(VersionLease()) as second:
            second.turn_to(users)
            users.replaced(lambda: told.append("unneeded"))
        assert told == []
    assert told == ["unneeded"]
    with closing(VersionLease()) as late:
        late.turn_to(users)
    assert told == ["unneeded"], "it is said once"


async def test_a_profile_that_becomes_whole_changes_the_unit_of_work_and_no_call() -> None:
    here, model = world(WINDOW, attached=False), version("1")
    assert model.profile is not None
    partly = replace(model, profile=replace(model.profile, partial=True))
    here.batcher.attach(partly)
    waiting = asyncio.create_task(asked(here, partly, b"a"))
    await asyncio.sleep(0.1)
    assert stats_of(here.batcher).profile is ProfileExtent.PARTIAL
    assert not stats_of(here.batcher).profile_known
    assert sum(stats_of(here.batcher).offered_work) == pytest.approx(1 / 4)
    here.batcher.expect(model)
    stats = stats_of(here.batcher)
    assert (stats.profile, stats.profile_known) == (ProfileExtent.WHOLE, True)
    assert sum(stats.offered_work) == 0, "full batches and seconds are not added up"
    assert rows_of(await waiting) == [b"a"]
    assert here.server.versions == ["1"]


async def test_a_profile_of_a_server_that_was_lost_meanwhile_is_not_taken() -> None:
    here, model = world(WINDOW, attached=False), version("1")
    here.batcher.attach(model)
    here.batcher.detach()
    assert model.profile is not None
    here.batcher.expect(model)
    assert here.batcher.model is None


async def test_a_version_that_nobody_needs_when_it_is_replaced_is_told_at_once() -> None:
    users, told = VersionUsers(), []
    with closing(VersionLease()) as other:
        other.turn_to(VersionUsers())
        users.replaced(lambda: told.append("unneeded"))
        assert told == ["unneeded"]
