"""A whole autoscaler at an API server over real HTTP: nothing it waits for keeps others waiting."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from batchedmodel_autoscaler.cluster.resources import API_SERVICES, FRONT_PROXY
from batchedmodel_autoscaler.metrics_api.certificates import make_identity
from batchedmodel_autoscaler.polling.poller import Poller
from batchedmodel_autoscaler.service import Service
from batchedmodel_autoscaler.settings import AutoscalerSettings
from batchedmodel_kube.client import Client
from batchedmodel_kube.names import METRICS_GROUP
from support.pretend_api_server import PretendApiServer, becomes, pretend_api_server
from support.running_task import running

MOST_NAMESPACES = 64
SETTINGS = AutoscalerSettings(
    namespace="ns",
    service_name="svc",
    deployment_name="svc",
    watch_namespaces=tuple(f"team-{number}" for number in range(MOST_NAMESPACES)),
    host="127.0.0.1",
    port=0,
    admin_port=0,
)
WATCHES = 4 * MOST_NAMESPACES + 5


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[PretendApiServer, Service]]:
    authority = make_identity(["front"], datetime.now(tz=UTC)).authority.decode()
    async with pretend_api_server(folder) as (server, kubeconfig):
        server.lists[FRONT_PROXY.path] = [
            {
                "metadata": {"name": FRONT_PROXY.name, "uid": "front", "resourceVersion": "1"},
                "data": {"requestheader-client-ca-file": authority},
            }
        ]
        environ = {"KUBECONFIG": str(kubeconfig)}
        cluster, leases = await Client.connect(environ), await Client.connect(environ)
        yield server, Service(SETTINGS, cluster, leases)


@pytest.mark.slow
async def test_an_api_server_that_answers_nothing_else_costs_nobody_the_lease(
    tmp_path: Path,
) -> None:
    async with api_server(tmp_path) as (server, service):
        server.hangs = True
        async with running(service.run(asyncio.Event())):
            await becomes(lambda: server.unanswered >= 100)
            await becomes(lambda: server.renewals >= 2, seconds=6)


@pytest.mark.slow
async def test_as_many_namespaces_as_the_chart_allows_are_watched_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with api_server(tmp_path) as (server, service), running(service.run(asyncio.Event())):
            await becomes(lambda: server.watches.total() == WATCHES)
            assert set(server.watches.values()) == {1}
            assert await said_of_readiness(caplog) == (200, "ready\n")


@pytest.mark.slow
async def test_it_is_not_ready_until_api_servers_believe_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a rollout would end the old pod before."""
    ours = API_SERVICES[METRICS_GROUP][0]
    with caplog.at_level(logging.INFO):
        async with api_server(tmp_path) as (server, service):
            # It takes a new authority, but nobody is told of it.
            server.lists[ours.path] = [
                {
                    "metadata": {"name": ours.name, "uid": "1", "resourceVersion": "1"},
                    "spec": {"service": {"namespace": "ns", "name": "svc"}},
                }
            ]
            async with running(service.run(asyncio.Event())):
                await becomes(lambda: server.watches.total() == WATCHES)
                status, words = await said_of_readiness(caplog)
    assert status == 503
    assert words == f"not there yet: our authority in {ours.name}\n"


async def said_of_readiness(caplog: pytest.LogCaptureFixture) -> tuple[int, str]:
    (line,) = [one for one in caplog.records if one.msg.startswith("listening")]
    assert line.args is not None
    _, admin_port = tuple(line.args)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{admin_port}/readyz") as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.slow
async def test_an_autoscaler_that_cannot_hear_its_sidecars_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_server(tmp_path) as (server, service):

        async def fails(poller: Poller) -> None:
            await becomes(lambda: server.lease is not None)
            raise ValueError("a bug")

        monkeypatch.setattr(Poller, "all_asked", fails)
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug")):
            await asyncio.wait_for(service.run(asyncio.Event()), 180)
        assert server.lease is not None
        assert not server.lease["spec"]["holderIdentity"]
