"""What was learnt gets into the status once, and not again before it is news."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from batchedmodel_autoscaler.cluster.objects import Model, ModelKey
from batchedmodel_autoscaler.state.capacity_writer import LEAST_SECONDS, MOST_WRITES, CapacityWriter
from batchedmodel_kube.capacity import Capacity, capacity_of
from batchedmodel_kube.errors import ClusterError, Gone, Unreachable, translated
from batchedmodel_kube.reading import Object
from support.autoscaler_world import KEY, MODEL

pytestmark = pytest.mark.looptime

LEARNT = Capacity(revision="a", rows_per_second=410.4, startup_seconds=61.0)


@dataclass
class World:
    """A fleet that knows one model, and a cluster that tells its status back."""

    model: Model | None = MODEL
    learnt: Capacity | None = LEARNT
    tells_back: bool = True
    leads: bool = True
    failure: ClusterError | None = None
    writes: list[tuple[float, str, Any]] = field(default_factory=list)

    def models(self) -> list[Model]:
        return [] if self.model is None else [self.model]

    def capacity(self, key: ModelKey) -> Capacity | None:
        assert key == KEY
        return self.learnt

    async def apply(self, path: str, manifest: Object, *, manager: str) -> Object:
        assert manager == "batchedmodel-autoscaler"
        self.writes.append((asyncio.get_running_loop().time(), path, manifest))
        if self.failure is not None:
            raise self.failure
        assert self.model is not None
        assert manifest["metadata"]["uid"] == self.model.uid
        if self.tells_back:
            self.model = replace(self.model, capacity=capacity_of(manifest["status"]))
        return manifest


@dataclass
class Crowd:
    """Models of which some cannot be written for some reason, the first where nothing is said."""

    failure: ClusterError | None
    keys: Sequence[ModelKey] = tuple(ModelKey("team", f"m{number}") for number in range(3))
    fail: Sequence[str] = ("team/m0",)
    learnt: Capacity = LEARNT
    leads: bool = True
    writes: list[tuple[float, str]] = field(default_factory=list)

    def models(self) -> list[Model]:
        return [replace(MODEL, key=key, uid=key.name) for key in self.keys]

    def capacity(self, key: ModelKey) -> Capacity | None:
        return self.learnt

    async def apply(self, path: str, manifest: Object, *, manager: str) -> Object:
        key = ModelKey(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        self.writes.append((asyncio.get_running_loop().time(), key.name))
        if str_of(key) in self.fail and self.failure is not None:
            raise self.failure
        return manifest

    def written(self) -> list[str]:
        return [name for _, name in self.writes]


def str_of(key: ModelKey) -> str:
    return f"{key.namespace}/{key.name}"


@asynccontextmanager
async def remembering(world: World | Crowd) -> AsyncIterator[None]:
    one = CapacityWriter(
        world.models,
        world.capacity,
        world.apply,
        leads=lambda: world.leads,
        calendar=lambda: datetime(2026, 11, 20, 10, tzinfo=UTC),
    )
    task = asyncio.create_task(one.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_is_written_once_rounded_and_of_this_very_object() -> None:
    world = World()
    async with remembering(world):
        await asyncio.sleep(3600)
    ((_, path, manifest),) = world.writes
    assert path == "/apis/batchedmodel.dev/v1alpha1/namespaces/team/batchedmodels/minilm/status"
    assert manifest["metadata"] == {"name": "minilm", "namespace": "team", "uid": "uid"}
    assert manifest["status"] == {
        "capacity": {
            "revision": "a",
            "rowsPerSecond": 410.0,
            "startupSeconds": 61.0,
            "learntAt": "2026-11-20T10:00:00Z",
        }
    }


async def test_noise_is_not_written_and_news_is() -> None:
    world = World()
    async with remembering(world):
        await asyncio.sleep(100)
        world.learnt = replace(LEARNT, rows_per_second=430.0, startup_seconds=70.0)
        await asyncio.sleep(3600)
        assert len(world.writes) == 1
        world.learnt = replace(LEARNT, revision="b")
        await asyncio.sleep(100)
        assert len(world.writes) == 2


async def test_no_model_is_written_twice_within_a_minute() -> None:
    world = World()
    async with remembering(world):
        for number in range(600):
            world.learnt = replace(LEARNT, rows_per_second=100.0 if number % 2 else 200.0)
            await asyncio.sleep(1.1)
    times = [at for at, _, _ in world.writes]
    assert len(times) > 2
    assert all(later - earlier >= LEAST_SECONDS for earlier, later in pairwise(times))


async def test_a_field_that_the_cluster_drops_is_not_written_for_ever() -> None:
    world = World(tells_back=False)
    async with remembering(world):
        await asyncio.sleep(3600)
    assert len(world.writes) == 1


async def test_what_another_replica_has_written_is_no_news() -> None:
    world = World(model=replace(MODEL, capacity=LEARNT))
    async with remembering(world):
        await asyncio.sleep(600)
    assert world.writes == []


async def test_who_does_not_lead_writes_nothing_until_he_does() -> None:
    world = World(leads=False)
    async with remembering(world):
        await asyncio.sleep(600)
        assert world.writes == []
        world.leads = True
        await asyncio.sleep(60)
        assert len(world.writes) == 1


async def test_a_later_model_of_the_same_name_is_written_anew() -> None:
    world = World()
    async with remembering(world):
        await asyncio.sleep(60)
        world.model = replace(MODEL, uid="another")
        await asyncio.sleep(60)
    assert len(world.writes) == 2


async def test_a_write_that_fails_is_tried_again_and_one_that_came_too_late_is_not() -> None:
    world = World(failure=Unreachable("no answer"))
    async with remembering(world):
        await asyncio.sleep(120)
        assert len(world.writes) > 1
        world.failure = None
        await asyncio.sleep(120)
        assert world.model is not None
        assert world.model.capacity is not None
    gone = World(failure=Gone("gone"))
    async with remembering(gone):
        await asyncio.sleep(600)
    assert len(gone.writes) == 1


@pytest.mark.parametrize("status", [400, 403, 405, 413, 422])
async def test_a_model_whose_status_is_refused_keeps_no_other_from_being_remembered(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = Crowd(translated(status, b""))
    async with remembering(crowd):
        await asyncio.sleep(16)
        assert crowd.written() == ["m0", "m1", "m2"]
        await asyncio.sleep(600)
        assert 5 <= crowd.written().count("m0") <= 11
        assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1
        crowd.failure = None
        await asyncio.sleep(90)
        settled = len(crowd.writes)
        await asyncio.sleep(600)
    assert len(crowd.writes) == settled
    assert crowd.written().count("m1") == 1


@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
async def test_a_namespace_that_cannot_be_written_is_asked_for_once_in_a_look(
    status: int,
) -> None:
    crowd = Crowd(translated(status, b""), fail=("team/m0", "team/m1", "team/m2"))
    async with remembering(crowd):
        await asyncio.sleep(60)
        times = [at for at, _ in crowd.writes]
        assert len(times) > 1
        assert all(later - earlier >= 15 for earlier, later in pairwise(times))
        crowd.failure = None
        await asyncio.sleep(120)
    assert set(crowd.written()) == {"m0", "m1", "m2"}


@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
async def test_a_cluster_that_writes_for_nobody_is_asked_for_two_namespaces_in_a_look(
    status: int,
) -> None:
    keys = [ModelKey(f"team-{number}", f"m{number}") for number in range(9)]
    crowd = Crowd(translated(status, b""), keys=keys, fail=[str_of(key) for key in keys])
    async with remembering(crowd):
        await asyncio.sleep(16)
        assert len(crowd.writes) == 2


async def test_a_model_whose_write_always_fails_keeps_no_other_from_being_remembered() -> None:
    """An API server says 500 of an object that is too large for its store."""
    keys = [ModelKey("hostile", f"m{number}") for number in range(3)]
    keys += [ModelKey("honest", f"h{number}") for number in range(3)]
    failure = Unreachable("etcdserver: request is too large")
    crowd = Crowd(failure, keys=keys, fail=("hostile/m0",))
    async with remembering(crowd):
        await asyncio.sleep(16)
        assert crowd.written() == ["m0", "h0", "h1", "h2"]
        await asyncio.sleep(17)
        assert crowd.written()[4:] == ["m1", "m2"]


async def test_thousands_of_models_of_one_namespace_keep_no_other_waiting() -> None:
    keys = [ModelKey("hostile", f"m{number}") for number in range(3_000)]
    keys += [ModelKey("honest", f"h{number}") for number in range(20)]
    crowd = Crowd(None, keys=keys)
    async with remembering(crowd):
        await asyncio.sleep(16)
        assert len(crowd.writes) == MOST_WRITES
        assert {f"h{number}" for number in range(20)} <= set(crowd.written())
        await asyncio.sleep(15)
        assert len(crowd.writes) == 2 * MOST_WRITES
