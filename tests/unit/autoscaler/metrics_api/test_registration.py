"""Our APIServices: kept right, left alone when they are somebody else's, removed at the end."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from batchedmodel_autoscaler.cluster.objects import ApiService
from batchedmodel_autoscaler.cluster.resources import API_SERVICES
from batchedmodel_autoscaler.metrics_api.certificates import RENEWED_AFTER, Rotation, holds
from batchedmodel_autoscaler.metrics_api.registration import Registration
from batchedmodel_autoscaler.telemetry import Telemetry
from batchedmodel_kube.client import Client
from batchedmodel_kube.errors import ClusterError, Conflict, Unreachable
from batchedmodel_kube.names import METRICS_GROUP
from batchedmodel_kube.reading import Object

pytestmark = pytest.mark.looptime

START = datetime(2026, 1, 1, tzinfo=UTC)
REGISTERED = API_SERVICES[METRICS_GROUP]


def api_service(name: str, **more: object) -> ApiService:
    plain = ApiService(
        name=name, uid=f"uid-{name}", version="1", namespace="ns", service="svc", bundle=b"",
        leaving=False,
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


@dataclass
class PretendCluster:
    """Takes writes and tells them on, as a watch would."""

    registration: Registration | None = None
    there: dict[str, ApiService] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    failure: ClusterError | None = None

    def put(self, found: ApiService) -> None:
        assert self.registration is not None
        self.there[found.name] = found
        self.registration.seen(found)

    async def merge(self, path: str, patch: Object) -> None:
        name = path.rpartition("/")[2]
        self.writes.append(f"patch {name}")
        if self.failure is not None:
            raise self.failure
        found = self.there[name]
        assert patch.keys() == {"metadata", "spec"}
        assert patch["spec"].keys() == {"caBundle"}
        if patch["metadata"]["resourceVersion"] != found.version:
            raise Conflict("changed")
        bundle = base64.b64decode(patch["spec"]["caBundle"])
        self.put(replace(found, bundle=bundle, version=str(int(found.version) + 1)))

    async def delete(self, path: str, *, uid: str) -> None:
        name = path.rpartition("/")[2]
        self.writes.append(f"delete {name}")
        if self.failure is not None:
            raise self.failure
        assert self.registration is not None
        assert self.there[name].uid == uid
        self.registration.gone(self.there.pop(name))


@dataclass
class World:
    cluster: PretendCluster
    registration: Registration
    rotation: Rotation
    ahead: timedelta = timedelta(0)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    loop = asyncio.get_running_loop()
    cluster, rotation = PretendCluster(), Rotation(["svc.ns.svc"], START)

    def clock() -> datetime:
        return START + timedelta(seconds=loop.time()) + made.ahead

    registration = Registration(
        cast(Client, cluster),
        rotation,
        namespace="ns",
        service="svc",
        telemetry=Telemetry(CollectorRegistry()),
        clock=clock,
    )
    cluster.registration = registration
    made = World(cluster=cluster, registration=registration, rotation=rotation)
    for resource in REGISTERED:
        cluster.put(api_service(resource.name))
    registration.home_seen(False)
    task = asyncio.create_task(registration.run())
    try:
        await asyncio.sleep(1)
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_both_get_our_authority_and_are_then_left_alone() -> None:
    async with world() as w:
        await asyncio.sleep(3600)
        assert sorted(w.cluster.writes) == sorted(f"patch {one.name}" for one in REGISTERED)
        for found in w.cluster.there.values():
            assert found.bundle == w.rotation.serving.authority


async def test_what_somebody_else_owns_is_never_touched() -> None:
    async with world() as w:
        name = REGISTERED[0].name
        w.cluster.writes.clear()
        w.cluster.put(api_service(name, namespace="monitoring", service="adapter"))
        await asyncio.sleep(60)
        w.registration.home_gone(False)
        await asyncio.sleep(60)
        assert w.cluster.writes == [f"delete {REGISTERED[1].name}"]


@pytest.mark.parametrize(
    ("whose", "named"),
    [
        ({"namespace": "monitoring", "service": "adapter"}, "Service monitoring/adapter"),
        ({"namespace": "", "service": ""}, "the API server itself"),
    ],
)
async def test_whoever_owns_the_api_is_named_once_and_keeps_it(
    whose: dict[str, str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        w.cluster.writes.clear()
        for version in ("5", "6", "7"):  # the aggregation layer writes its status
            for resource in REGISTERED:
                w.cluster.put(api_service(resource.name, version=version, **whose))
            await asyncio.sleep(30)
        assert w.cluster.writes == []
        assert [one.bundle for one in w.cluster.there.values()] == [b"", b""]
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == len(REGISTERED)
    for resource, message in zip(REGISTERED, told, strict=True):
        assert message.startswith(f"{resource.name} is served by {named}:")


async def test_each_of_ours_is_untrusting_until_our_authority_stands_in_it() -> None:
    async with world() as w:
        assert w.registration.untrusting == []
        w.cluster.failure = Unreachable("no answer")
        found = w.cluster.there[REGISTERED[0].name]
        w.cluster.put(replace(found, bundle=b"", version="9"))
        await asyncio.sleep(60)
        assert w.registration.untrusting == [found.name]
        w.cluster.failure = None
        await asyncio.sleep(60)
        assert w.registration.untrusting == []


async def test_a_renewal_is_not_awaited_while_what_serves_is_trusted() -> None:
    async with world() as w:
        w.cluster.failure = Unreachable("no answer")
        w.ahead = RENEWED_AFTER
        await asyncio.sleep(60)
        assert len(w.rotation.authorities) == 2
        assert w.registration.untrusting == []


@pytest.mark.parametrize("whose", ["another's", "leaving", "absent", "uninstalled"])
async def test_no_trust_is_awaited_from_what_we_do_not_write(whose: str) -> None:
    async with world() as w:
        w.cluster.failure = Unreachable("no answer")
        for resource in REGISTERED:
            found = api_service(resource.name, version="9")
            match whose:
                case "another's":
                    w.cluster.put(replace(found, namespace="monitoring", service="adapter"))
                case "leaving":
                    w.cluster.put(replace(found, leaving=True))
                case "absent":
                    w.registration.gone(found)
                case _:
                    w.registration.home_gone(False)
                    w.cluster.put(found)
        await asyncio.sleep(1)
        assert w.registration.untrusting == []


async def test_a_spoilt_bundle_is_made_right_at_once() -> None:
    async with world() as w:
        found = w.cluster.there[REGISTERED[0].name]
        w.cluster.put(replace(found, bundle=b"", version="9"))
        await asyncio.sleep(0.1)
        assert w.cluster.there[found.name].bundle == w.rotation.serving.authority


@pytest.mark.slow
async def test_a_bundle_that_is_spoilt_again_and_again_is_made_right_four_times_a_minute() -> None:
    async with world() as w:
        name = REGISTERED[0].name

        def spoilt() -> bool:
            return not w.cluster.there[name].bundle

        await asyncio.sleep(60)
        w.cluster.writes.clear()
        for _ in range(6000):
            if not spoilt():
                w.cluster.put(replace(w.cluster.there[name], bundle=b""))
            await asyncio.sleep(0.1)
        assert 40 <= len(w.cluster.writes) <= 4 + 40
        await asyncio.sleep(16)
        assert not spoilt()


async def test_a_write_that_fails_is_tried_again() -> None:
    async with world() as w:
        w.cluster.failure = Unreachable("no answer")
        found = w.cluster.there[REGISTERED[0].name]
        w.cluster.put(replace(found, bundle=b"", version="9"))
        await asyncio.sleep(60)
        w.cluster.failure = None
        await asyncio.sleep(60)
        assert w.cluster.there[found.name].bundle == w.rotation.serving.authority


async def test_a_lost_race_waits_for_the_watch() -> None:
    async with world() as w:
        w.cluster.writes.clear()
        w.cluster.failure = Conflict("changed")
        found = w.cluster.there[REGISTERED[0].name]
        w.cluster.put(replace(found, bundle=b"", version="9"))
        await asyncio.sleep(10)
        assert len(w.cluster.writes) == 1


async def test_a_new_certificate_serves_once_its_authority_is_everywhere() -> None:
    async with world() as w:
        first = w.rotation.serving
        w.ahead = RENEWED_AFTER
        await asyncio.sleep(20)
        for found in w.cluster.there.values():
            assert all(holds(found.bundle, one) for one in w.rotation.authorities)
        assert w.rotation.serving is first
        assert not w.registration.renewed.is_set()
        await asyncio.sleep(60)
        assert w.rotation.serving is not first
        assert w.registration.renewed.is_set()
        for found in w.cluster.there.values():
            assert holds(found.bundle, first.authority)


async def test_a_version_that_is_another_owners_holds_no_renewal_up() -> None:
    async with world() as w:
        theirs, ours = (api_service(resource.name, version="9") for resource in REGISTERED)
        w.cluster.put(replace(theirs, namespace="monitoring", service="adapter"))
        first = w.rotation.serving
        w.ahead = RENEWED_AFTER
        await asyncio.sleep(80)
        assert w.rotation.serving is not first
        assert holds(w.cluster.there[ours.name].bundle, w.rotation.serving.authority)


@pytest.mark.parametrize("how", ["leaving", "gone"])
async def test_being_uninstalled_removes_both_and_restores_nothing(how: str) -> None:
    async with world() as w:
        if how == "leaving":
            w.registration.home_seen(True)
        else:
            w.registration.home_gone(False)
        await asyncio.sleep(0.1)
        assert w.cluster.there == {}
        writes = list(w.cluster.writes)
        await asyncio.sleep(3600)
        assert w.cluster.writes == writes


async def test_the_next_installations_are_not_removed() -> None:
    async with world() as w:
        name = REGISTERED[0].name
        w.registration.home_gone(False)
        await asyncio.sleep(1)
        w.cluster.put(api_service(name, uid="another"))
        await asyncio.sleep(60)
        assert name in w.cluster.there


async def test_a_removal_that_fails_is_tried_again() -> None:
    async with world() as w:
        w.cluster.failure = Unreachable("no answer")
        w.registration.home_gone(False)
        await asyncio.sleep(30)
        w.cluster.failure = None
        await asyncio.sleep(60)
        assert w.cluster.there == {}
